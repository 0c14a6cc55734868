#!/bin/sh
# Installs urxe from the folder that this file is in: the command, its library, manual pages and completions.
#
#     ./install.sh [--prefix DIR]        default: /usr/local for root, else ~/.local
#     ./install.sh --uninstall [--prefix DIR]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
prefix=
action=install
while [ $# -gt 0 ]; do
    case "$1" in
        --prefix) prefix=${2:?--prefix wants a folder}; shift ;;
        --prefix=*) prefix=${1#--prefix=} ;;
        --uninstall) action=uninstall ;;
        -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "$0: $1 means nothing here; --help" >&2; exit 2 ;;
    esac
    shift
done
if [ -z "$prefix" ]; then
    if [ "$(id -u)" -eq 0 ]; then prefix=/usr/local; else prefix=${HOME:?}/.local; fi
fi

# Completions where the shells look for them.
files="bin/urxe lib/urxe/urxe lib/urxe/liburxe.so share/bash-completion/completions/urxe share/zsh/site-functions/_urxe
share/fish/vendor_completions.d/urxe.fish"
for page in "$here"/share/man/man1/*; do
    files="$files share/man/man1/${page##*/}"
done

if [ "$action" = uninstall ]; then
    for file in $files; do
        rm -f "$prefix/$file"
    done
    rmdir "$prefix/lib/urxe" 2>/dev/null || true
    echo "removed from $prefix"
    exit 0
fi

umask 022
for file in $files; do
    mkdir -p "$prefix/$(dirname "$file")"
    case "$file" in
        bin/urxe) ln -sfn ../lib/urxe/urxe "$prefix/$file" ;;
        # Not over a file that programs have mapped.
        lib/urxe/*)
            cp "$here/${file##*/}" "$prefix/$file.new"
            mv "$prefix/$file.new" "$prefix/$file"
            ;;
        *) cp "$here/$file" "$prefix/$file" ;;
    esac
done
"$prefix/bin/urxe" --version >/dev/null || { echo "urxe does not run here: INSTALL says what it needs" >&2; exit 1; }
case ":$PATH:" in
    *":$prefix/bin:"*) echo "installed: urxe run -- ibv_devinfo" ;;
    *) echo "installed: $prefix/bin/urxe run -- ibv_devinfo; $prefix/bin is not in PATH" ;;
esac
