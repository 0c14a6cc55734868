//! Writes the generated files of `src/` anew from the headers installed on this machine.
//!
//! Needs libclang, libibverbs-dev and linux-libc-dev.

#[path = "../tests/generator/mod.rs"]
mod generator;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for generated in generator::ALL {
        std::fs::write(generated.path(), generated.text()?)?;
        println!("{}: {}", generated.path().display(), generated.origin_line());
    }
    Ok(())
}
