//! The committed bindings are what bindgen makes of the headers they name.

mod generator;

use std::io::Write as _;

#[test]
fn committed_files_are_what_the_headers_give() -> Result<(), Box<dyn std::error::Error>> {
    for generated in generator::ALL {
        let committed = std::fs::read_to_string(generated.path())?;
        let named = committed.lines().next().unwrap_or_default();
        let installed = generated.origin_line();
        if named != installed {
            // Other headers, other text: nothing to compare. Straight to the descriptor, so that the
            // test harness does not swallow it.
            writeln!(
                std::io::stderr(),
                "{}: not compared, the installed headers differ\n  committed: {named}\n  installed: {installed}",
                generated.file,
            )?;
            continue;
        }
        let fresh = generated.text()?;
        let difference = committed.lines().zip(fresh.lines()).position(|(a, b)| a != b);
        assert!(
            committed == fresh,
            "{} is stale (first difference after line {}): run `cargo run -p urxe-ffi --example regenerate`",
            generated.file,
            difference.unwrap_or_else(|| committed.lines().count().min(fresh.lines().count())),
        );
    }
    Ok(())
}
