#!/usr/bin/env bash
# Runs GNU grep's own tests twice, with its grep and with a shim in its place that filters whatever can be
# filtered, and demands the same outcome of every test. The source comes from the distribution, by apt, into
# build/gnu-grep, and is never part of this repository.
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
work=$checkout/build/gnu-grep
jobs=$(nproc)
mkdir -p "$work"

fetch() {
    [ -e "$work/.fetched" ] && return
    . /etc/os-release
    local mirror=http://deb.debian.org/debian keys=/usr/share/keyrings/debian-archive-keyring.gpg
    if [ "$ID" = ubuntu ]; then
        mirror=http://archive.ubuntu.com/ubuntu keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    fi
    mkdir -p "$work"/apt/{lists,cache}/partial
    echo "deb-src [signed-by=$keys] $mirror $VERSION_CODENAME main" > "$work/apt/sources.list"
    local apt=(
        apt-get -q -o "Dir::Etc::SourceList=$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root
    )
    "${apt[@]}" update
    (cd "$work" && "${apt[@]}" source --download-only grep)
    mkdir -p "$work/source"
    tar -xf "$(find "$work" -maxdepth 1 -name 'grep_*.orig.tar.*z*' ! -name '*.asc')" -C "$work/source" --strip-components=1
    touch "$work/.fetched"
}

build() {
    [ -e "$work/.built" ] && return
    cd "$work/source"
    ./configure --quiet --disable-dependency-tracking
    make -s -j"$jobs" -C lib
    make -s -j"$jobs" -C src
    mkdir -p "$work/real" "$work/locales"
    cp src/grep "$work/real/grep"
    # Without its locales a third of the tests is skipped.
    local name
    for name in en_US.UTF-8 fr_FR.UTF-8 tr_TR.UTF-8 cs_CZ.UTF-8 ru_RU.KOI8-R ja_JP.EUC-JP zh_CN.GB18030; do
        localedef -i "${name%.*}" -f "${name#*.}" "$work/locales/$name"
    done
    localedef -i fr_FR -f ISO-8859-1 "$work/locales/fr_FR"
    touch "$work/.built"
    cd "$checkout"
}

# run NAME: runs the tests with what is src/grep, and writes their outcomes.
run() {
    local source=$work/source
    rm -f "$source"/tests/*.log "$source"/tests/*.trs "$work/$1.ways"
    PATH=$work/real:$PATH LOCPATH=$work/locales WAYS=$work/$1.ways PYTHONPATH=$checkout \
        PYTHONDONTWRITEBYTECODE=1 \
        make -k -j"$jobs" -C "$source/tests" check MAKEINFO=true LOCALE_FR=fr_FR LOCALE_FR_UTF8=fr_FR.UTF-8 \
        > "$work/$1.log" 2>&1 || true
    grep -H '^:test-result:' "$source"/tests/*.trs |
        sed -E 's|.*/([^/]+)\.trs::test-result: ([A-Z]+).*|\1 \2|' | sort > "$work/$1.outcomes"
    echo "$1: $(cut -d ' ' -f 2 "$work/$1.outcomes" | sort | uniq -c | xargs)"
}

fetch
build
cp "$work/real/grep" "$work/source/src/grep"
[ -s "$work/real.outcomes" ] || run real
install -m 755 tests/support/forced_shim.py "$work/source/src/grep"
run forced
cp "$work/real/grep" "$work/source/src/grep"

diff "$work/real.outcomes" "$work/forced.outcomes"
filtered=$(grep -c '^filtered' "$work/forced.ways" || true)
echo "filtered: $filtered of $(wc -l < "$work/forced.ways") runs of grep"
if [ "$filtered" -lt 150 ]; then
    echo "too few: the shim was hardly tested" >&2
    exit 1
fi
