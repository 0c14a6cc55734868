# What the packages have in common; sourced by `deb` and `tarball`.

here=$(cd "$(dirname "$0")/.." && pwd)
# What a package holds of the folder of the build.
files="urxe liburxe.so"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/Cargo.toml")

# The processor that the files are for.
machine=${ARCHITECTURE:-$(uname -m)}

# The newest version of glibc's symbols that the files ask for: on an older one they do not load.
glibc() {
    for file in $files; do
        "${OBJDUMP:-objdump}" -T "$1/$file"
    done | sed -n 's/.*(\?GLIBC_\(2\.[0-9.]*\).*/\1/p' | sort -uV | tail -n 1
}

# Copies the files of folder $1 to folder $2, without what only a debugger reads.
copy_files() {
    mkdir -p "$2"
    for file in $files; do
        "${STRIP:-strip}" --strip-unneeded -o "$2/$file" "$1/$file"
        chmod 755 "$2/$file"
    done
    chmod 644 "$2/liburxe.so"
}

# Copies README and all that it and the documents of docs/ link to, to folder $1, which is as the repository then.
copy_documents() {
    mkdir -p "$1"
    for file in "$here"/*.md; do
        install -m 644 "$file" "$1/"
    done
    (cd "$here" && find docs spec packaging/include packaging/grafana packaging/wireshark device-plugin/daemonset.yaml ./*/README.md ./*/*/README.md -name '*.md' -o -name '*.svg' -o -name '*.png' -o -name daemonset.yaml -o -path 'docs/guide/ci/*' -type f -o -path 'docs/guide/fuzzing/*' -type f -o -path 'packaging/*' -type f) | while read -r file; do
        mkdir -p "$1/$(dirname "$file")"
        install -m 644 "$here/$file" "$1/$file"
    done
}

# Writes manual pages and completions below folder $2, completions of zsh and fish to its folders $3 and $4. The command of
# folder $1 prints them, or $URXE where that is for another processor.
write_shell_help() {
    urxe=${URXE:-$1/urxe}
    "$urxe" man "$2/man/man1"
    for at in bash:bash-completion/completions/urxe "zsh:$3/_urxe" "fish:$4/urxe.fish"; do
        mkdir -p "$2/$(dirname "${at#*:}")"
        "$urxe" completions "${at%%:*}" >"$2/${at#*:}"
    done
    chmod -R u=rwX,go=rX "$2"
}
