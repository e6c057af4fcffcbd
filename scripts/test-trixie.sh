#!/bin/bash
# Builds and tests on Debian 13, in a root made by debootstrap: another Python, and a libfuse (3.17) with another
# symbol for fast mode to stand in front of. `scripts/test-trixie.sh [pytest's arguments]`, as root.
#
#   MIRROR=…   where Debian comes from
#   ROOT=…     keep the root here and use it again (default: a temporary one)
#
# Everything is bound into the root within a mount and process namespace of its own: however this ends, nothing
# stays mounted or running, and what is removed afterwards holds no foreign directory.
set -euo pipefail
cd "$(dirname "$0")/.."

MIRROR=${MIRROR:-http://deb.debian.org/debian}
PACKAGES=(attr binutils bubblewrap ca-certificates fuse3 gcc libc6-dev libfuse3-dev locales make pkg-config procps
    python3-dev python3-venv redis-server ripgrep)

die() {
    printf 'chromafuse: %s\n' "$1" >&2
    exit 1
}

# Outside: the place, and its end.
outside() {
    [ "$(id -u)" -eq 0 ] || die "debootstrap and chroot take root: sudo $0"
    command -v debootstrap >/dev/null || die "no debootstrap; install it: apt-get install debootstrap"
    [ -c /dev/fuse ] || die "no /dev/fuse: load the module (modprobe fuse)"
    local root=${ROOT-}
    if [ -z "$root" ]; then
        root=$(mktemp -d "${TMPDIR:-/tmp}/chromafuse-trixie-XXXXXX")
        # shellcheck disable=SC2064 # the name as it is now
        trap "rm -rf --one-file-system -- '$root'" EXIT
    fi
    mkdir -p "$root"
    unshare --mount --pid --fork --kill-child --propagation private "$0" --inside "$root" "$@"
}

# Inside the namespaces: make the root once, give it the kernel's file systems, and go in.
inside() {
    local root=$1
    shift
    if [ ! -e "$root/usr/.made" ]; then
        debootstrap --variant=minbase trixie "$root" "$MIRROR" >"$root/log" 2>&1 ||
            { tail -n 5 "$root/log" >&2; die "debootstrap failed, see above"; }
        touch "$root/usr/.made"
    fi
    mount --bind "$root" "$root" # so that / is a mount in there as well; tests make namespaces of their own
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sys "$root/sys"
    mount -t tmpfs tmpfs "$root/dev/shm"
    touch "$root/dev/fuse"
    mount --bind /dev/fuse "$root/dev/fuse"
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    # What this machine trusts, for pip; the root's own list stays apt's business.
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/srv/certificates.crt"
    # A copy: the build must not write into this checkout, and mounts need a place that others can enter.
    rm -rf "$root/srv/chromafuse"
    mkdir -p "$root/srv/chromafuse"
    tar -c --exclude=./.venv --exclude=./.git --exclude='*.so' --exclude=__pycache__ . |
        tar -x --no-same-owner -C "$root/srv/chromafuse"
    exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        PIP_CERT=/srv/certificates.crt ${CI:+CI="$CI"} \
        /bin/bash /srv/chromafuse/scripts/test-trixie.sh --chrooted "$@"
}

install_packages() {
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d # no package starts a service
    chmod +x /usr/sbin/policy-rc.d
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o APT::Sandbox::User=root)
    { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${PACKAGES[@]}"; } >/log 2>&1 ||
        { tail -n 20 /log >&2; die "apt-get failed in Debian 13, see above"; }
}

# In Debian 13: a plain user's way, `pip install` without the Makefile, and the tests in the copy.
chrooted() {
    [ $# -gt 0 ] || set -- tests/test_fast.py
    dpkg -s "${PACKAGES[@]}" >/dev/null 2>&1 || install_packages
    [ -x /srv/venv/bin/python ] || python3 -m venv /srv/venv
    /srv/venv/bin/pip install -q --disable-pip-version-check -c constraints.txt -e '.[test]'
    /srv/venv/bin/python -c 'import sys; print("Python", *sys.version.split()[:1])'
    pkg-config --modversion fuse3 | sed 's/^/libfuse /'
    nm -D /srv/venv/lib/python3*/site-packages/pyfuse3/*.so | grep fuse_session_new
    exec /srv/venv/bin/python -m pytest "$@"
}

case ${1-} in
    --inside) shift && inside "$@" ;;
    --chrooted) shift && chrooted "$@" ;;
    *) outside "$@" ;;
esac
