#!/bin/bash
# Installs what is missing for one purpose, and nothing that is there: `bootstrap.sh run|test|bench|device|venv`.
#
#   run     the system packages that chromafuse itself is built from and runs with
#   test    those, and the tools that the tests compare with
#   bench   those, and the tools that only the bench measures
#   device  nothing; says why /dev/fuse cannot be used, if it cannot
#   venv    .venv, installed from pyproject.toml with the versions of constraints.txt
#
# What cannot be done ends with one line: what is missing, and how to get it.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-/usr/bin/python3}
VENV=.venv

die() {
    printf 'chromafuse: %s\n' "$1" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

check_python() {
    have "$PYTHON" ||
        die "no $PYTHON; install Python 3.11 or newer (apt-get install python3), or name one: make PYTHON=/path/to/python3 …"
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "$PYTHON is $("$PYTHON" -V 2>&1); chromafuse needs Python 3.11 or newer: install one, then make PYTHON=/path/to/python3.11 …"
}

# Probes, not package names: what was installed in another way counts as well.
missing_for_run() {
    have fusermount3 || echo fuse3
    have pkg-config || echo pkg-config
    { have pkg-config && pkg-config --exists fuse3; } || echo libfuse3-dev
    have gcc || echo gcc
    "$PYTHON" -c 'import os, sys, sysconfig as s
sys.exit(not os.path.exists(os.path.join(s.get_path("include"), "Python.h")))' || echo python3-dev
    "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
}

missing_for_test() {
    have redis-server || echo redis-server
    have rg || echo ripgrep
    have bwrap || echo bubblewrap
    have getfattr || echo attr
    have openssl || echo openssl
    { have localedef && [ -e /usr/share/i18n/locales/tr_TR ]; } || echo locales
}

missing_for_gnu() {
    have make || echo make
    { have pkg-config && pkg-config --exists libpcre2-8; } || echo libpcre2-dev
}

missing_for_bench() {
    have ugrep || echo ugrep
    have bfs || echo bfs
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

install_packages() {
    [ $# -gt 0 ] || return 0
    have apt-get || die "missing here: $*; this machine has no apt-get, so install them with its own package manager"
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || die "missing here: $*; ask root for: apt-get install $*"
        sudo -n true 2>/dev/null || [ -t 0 ] ||
            die "missing here: $*, and sudo wants a password; run: sudo apt-get install $*"
    fi
    echo "installing: $*"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120)
    as_root "${apt[@]}" update -q ||
        die "apt-get update failed (see above); once it works: apt-get install $*"
    as_root "${apt[@]}" install -q -y --no-install-recommends "$@" ||
        die "apt-get could not install: $* (see above); install them by hand, then run this again"
    case " $* " in *" redis-server "*) tell_about_redis ;; esac
}

# The package starts a service where the machine's policy lets it. Whether it stays is not ours to decide.
tell_about_redis() {
    if have systemctl && systemctl -q is-active redis-server 2>/dev/null; then
        echo "note: the redis-server package started a service; the tests use servers of their own." \
            "To stop it: systemctl disable --now redis-server"
    fi
}

check_device() {
    [ -c /dev/fuse ] ||
        die "no /dev/fuse: load the module (modprobe fuse); in a container start it with --device /dev/fuse --cap-add SYS_ADMIN"
    if ! (exec 3<>/dev/fuse) 2>/dev/null; then
        die "/dev/fuse cannot be opened by $(id -un) (mode $(stat -c %a /dev/fuse)): run as root, or ask root for chmod 666 /dev/fuse"
    fi
}

# A process that another user runs has to reach the code; mounts themselves work without.
tell_about_private_parents() {
    local dir=$PWD
    while [ "$dir" != / ]; do
        case $(stat -c %a "$dir") in
            *[1357]) ;;
            *)
                echo "note: other users cannot enter $dir, so they cannot run this checkout's chromafuse;" \
                    "use a checkout in an open place (such as /srv or /opt) where they must"
                return
                ;;
        esac
        dir=$(dirname "$dir")
    done
}

same_python() {
    [ -x "$VENV/bin/python" ] &&
        [ "$("$VENV/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null)" = \
            "$("$PYTHON" -c 'import sys; print(sys.version)')" ]
}

make_venv() {
    same_python || "$PYTHON" -m venv --clear "$VENV" ||
        die "$PYTHON cannot make a virtual environment: apt-get install python3-venv"
    echo "installing the packages of constraints.txt into $VENV"
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test]' ||
        die "pip could not install the packages of constraints.txt (see above): is the package index reachable?"
    # pip -q hides the warning of a build that failed.
    ls chromafuse/view/_fast*.so >/dev/null 2>&1 ||
        echo "the C part of fast mode was not built: mounts work, slower; it needs gcc, pkg-config and libfuse3-dev"
    tell_about_private_parents
    touch "$VENV/.installed"
}

case ${1-} in
    run)
        check_python
        mapfile -t packages < <(missing_for_run)
        install_packages "${packages[@]}"
        ;;
    test)
        check_python
        mapfile -t packages < <(missing_for_run; missing_for_test)
        install_packages "${packages[@]}"
        ;;
    gnu)
        check_python
        mapfile -t packages < <(missing_for_run; missing_for_test; missing_for_gnu)
        install_packages "${packages[@]}"
        ;;
    bench)
        check_python
        mapfile -t packages < <(missing_for_run; missing_for_test; missing_for_bench)
        install_packages "${packages[@]}"
        ;;
    device) check_device ;;
    venv) check_python && make_venv ;;
    *) die "usage: scripts/bootstrap.sh run|test|gnu|bench|device|venv" ;;
esac
