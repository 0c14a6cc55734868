//! Says where cargo leaves the library that the feature `embedded` puts into the command.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // <target>/<profile>/build/<this package>/out; what dependencies are built into is <target>/<profile>/deps.
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let profile = out.ancestors().nth(3).map(PathBuf::from).unwrap_or_default();
    println!("cargo::rustc-env=URXE_EMBEDDED_LIBRARY={}", profile.join("deps/liburxe.so").display());
}
