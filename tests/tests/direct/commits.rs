//! Hosts where the kernel refuses memory beyond its commit limit (`vm.overcommit_memory=2`).

use anyhow::{Context as _, Result, ensure};
use urxe_tests::verbs::memory::PAGE;
use urxe_tests::verbs::{Options, Pair};
use urxe_tests::{World, in_world_with};

use super::memory::is_direct;

/// Has programs of the world read that commits are limited.
fn limit(world: &World) -> Result<()> {
    let mode = world.dir().join("overcommit_memory");
    std::fs::write(&mode, "2\n")?;
    let mode = mode.to_str().context("a path that is not UTF-8")?;
    world.host().run("mount", &["--bind", mode, "/proc/sys/vm/overcommit_memory"])?;
    Ok(())
}

/// Shared pages are committed when they are written to: an access of the program to its own memory would raise SIGBUS.
#[test]
fn limited_commits_leave_pages_private() {
    let limited = |world: &World| {
        world.host().go_direct();
        limit(world)
    };
    in_world_with(limited, || {
        let pair = Pair::new(&Options::default())?;
        let memory = pair.far.region(PAGE)?;
        ensure!(!is_direct(&pair, &memory)?, "pages are shared");
        Ok(())
    });
}
