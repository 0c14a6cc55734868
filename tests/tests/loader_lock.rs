//! Verbs while another thread holds the dynamic loader's lock, as it does while constructors and destructors of libraries run.

use std::fs;

use anyhow::{Context as _, Result};
use urxe_tests::World;

const LIBRARY: &str =
    "void constructor(void); __attribute__((constructor)) static void begin(void) { constructor(); }\n";

/// dapl's libraries end their connections in destructors; a thread of ours that sent for the first time waited for the loader meanwhile.
#[test]
fn a_thread_sends_for_the_first_time_while_a_library_is_loaded() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let dir = world.dir().to_str().context("a path that is not UTF-8")?;
    let [source, library, program] = ["library.c", "library.so", "loader_lock"].map(|name| format!("{dir}/{name}"));
    fs::write(&source, LIBRARY)?;
    host.run("cc", &["-shared", "-fPIC", "-o", &library, &source])?.success()?;
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/loader_lock.c");
    host.run("cc", &["-O1", "-Wall", "-Werror", "-rdynamic", "-o", &program, from, "-libverbs", "-lpthread"])?
        .success()?;
    host.run(&program, &[&library])?.success()?;
    Ok(())
}
