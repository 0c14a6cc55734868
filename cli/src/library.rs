//! The provider library that belongs to this command.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// File name of the library as `cargo build` leaves it.
pub(crate) const NAME: &str = "liburxe.so";

/// `liburxe.so` beside this executable: the two files travel together.
pub(crate) fn beside_this_command() -> Result<PathBuf> {
    let command = std::env::current_exe().context("finding this executable")?;
    let library = command.with_file_name(NAME);
    ensure!(
        library.is_file(),
        "{} is missing: keep {NAME} in the same folder as `urxe` (`make build` puts both into target/release; `cargo install` builds \
         the command only: cargo build --release -p urxe-provider && cp target/release/{NAME} {})",
        library.display(),
        library.parent().unwrap_or(Path::new("/")).display()
    );
    Ok(library)
}
