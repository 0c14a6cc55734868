# What the packages have in common; sourced by `deb` and `tarball`.

here=$(cd "$(dirname "$0")/.." && pwd)
# What a package holds of the folder of the build.
files="urxe liburxe.so"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/Cargo.toml")

# The newest version of glibc's symbols that the files ask for: on an older one they do not load.
glibc() {
    for file in $files; do
        objdump -T "$1/$file"
    done | sed -n 's/.*(\?GLIBC_\(2\.[0-9.]*\).*/\1/p' | sort -uV | tail -n 1
}

# Copies the files of folder $1 to folder $2, without what only a debugger reads.
copy_files() {
    mkdir -p "$2"
    for file in $files; do
        strip --strip-unneeded -o "$2/$file" "$1/$file"
        chmod 755 "$2/$file"
    done
    chmod 644 "$2/liburxe.so"
}
