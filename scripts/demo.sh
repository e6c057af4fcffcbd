#!/bin/bash
# The sample site, ingested into an embedded Chroma and mounted as three identities. Leaves nothing behind.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
PATH=$checkout/.venv/bin:$PATH
# A state of its own: nothing of the user's cache or runtime directory is read or changed.
work=$(mktemp -d "${TMPDIR:-/tmp}/chromafuse-demo-XXXXXX")
export CHROMAFUSE_CACHE_DIR=$work/.cache XDG_RUNTIME_DIR=$work/.run LC_ALL=C.UTF-8
identities=(anonymous billing operator)

if [ -t 1 ]; then
    bold=$'\e[1m' accent=$'\e[1;36m' plain=$'\e[0m'
else
    bold='' accent='' plain=''
fi

clean() {
    local status=$? name
    trap - EXIT
    cd /
    for name in "${identities[@]}"; do
        if mountpoint -q "$work/$name"; then
            chromafuse umount "$work/$name" >/dev/null 2>&1 || fusermount3 -u -z "$work/$name" || true
        fi
    done
    if findmnt -rno TARGET | grep -q "^$work/"; then
        echo "demo: something is still mounted below $work" >&2
        exit 1
    fi
    rm -rf "$work"
    exit "$status"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { printf '\n%s%s%s\n' "$accent" "$1" "$plain"; }

# Shows a command and what it prints; that it fails may be the point of showing it.
show() {
    printf '%s$ %s%s\n' "$bold" "$1" "$plain"
    (eval "$1") 2>&1 || true
}

# A step that the rest stands on.
must() {
    printf '%s$ %s%s\n' "$bold" "$1" "$plain"
    eval "$1"
}

pages() { find "$@" -type f 2>/dev/null | wc -l; }

table() {
    local area name
    printf '  %-14s' 'files in'
    printf '%11s' "${identities[@]}"
    echo
    for area in . guide reference billing admin drafts; do
        printf '  %-14s' "${area/#./the whole site}"
        for name in "${identities[@]}"; do
            if [ -d "$name/$area" ]; then
                printf '%11s' "$(pages "$name/$area")"
            else
                printf '%11s' -
            fi
        done
        echo
    done
}

cd "$work"
mkdir -m 0700 .cache .run
mkdir "${identities[@]}"
cp -a "$checkout/examples/site" site
cp "$checkout/examples/acl.toml" acl.toml

say 'A directory of documentation goes into Chroma …'
must 'chromafuse ingest site ./store --acl acl.toml'

say '… and comes back as three directories, one for each identity.'
must 'chromafuse mount ./store anonymous --daemon'
must 'chromafuse mount ./store billing --group billing --daemon'
must 'chromafuse mount ./store operator --unrestricted --daemon'
show 'findmnt -t fuse.chromafuse -o TARGET,SOURCE,FSTYPE | grep "TARGET\|$PWD/"'

say 'Plain tools, plain files.'
show 'ls -F anonymous billing'
show 'head -n 12 anonymous/reference/limits.mdx'
show 'grep -rn "credit" billing'

say 'What an identity may not see is not there: no name, no match, no error that gives it away.'
show 'grep -rn "credit" anonymous'
show 'cat anonymous/billing/refunds.mdx anonymous/billing/no-such-page.mdx'
show 'grep -rlF UNDERSTORY . --include="*.mdx" --exclude-dir=site | sort'
table

say 'The bytes are the bytes: only dot-files and symlinks stay behind.'
show 'diff -r site operator'

say 'Nothing can be written, by root neither.'
show 'echo hello > billing/hello.md'
show 'rm operator/index.mdx'
show 'mv operator/guide operator/book'

say 'Done.'
for name in "${identities[@]}"; do
    must "chromafuse umount $name"
done
