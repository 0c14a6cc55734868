//! Tests that call libibverbs themselves: the test runs itself again inside a world.

use std::any::type_name;

use anyhow::{Context, Result, ensure};

use crate::process::TIMEOUT;
use crate::world::World;

/// Set in the process that is inside.
const INSIDE: &str = "URXE_TEST_INSIDE";

/// Runs the calling test's `body` in a process of its own, inside a fresh [`World`] with urxe0 on `lo`. Call it with a
/// closure written in the test function itself: the closure's type tells the test's name.
///
/// # Panics
/// When the body fails, panics, is killed or does not end.
pub fn in_world<F: FnOnce() -> Result<()>>(body: F) {
    in_world_with(|_| Ok(()), body);
}

/// As [`in_world`]; `prepare` changes the world first (adds hosts, variables, …), and what it returns is kept until the
/// body has run: a host that is dropped takes its end of a link away. The body runs on the world's first host.
///
/// # Panics
/// When either fails; see [`in_world`].
pub fn in_world_with<T, F: FnOnce() -> Result<()>>(prepare: impl FnOnce(&World) -> Result<T>, body: F) {
    let result = if is_inside() { body() } else { run_inside(&test_name::<F>(), prepare) };
    if let Err(error) = result {
        panic!("{error:#}");
    }
}

/// As [`in_world`], where processes of the host send by UDP: for tests of what happens on the wire.
///
/// # Panics
/// As [`in_world`].
pub fn in_world_over_udp<F: FnOnce() -> Result<()>>(body: F) {
    let over_udp = |world: &World| {
        world.host().set_env("URXE_LOOPBACK", "udp");
        Ok(())
    };
    in_world_with(over_udp, body);
}

/// Whether the own process is the one that [`in_world`] started, with the world around it.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

fn run_inside<T>(test: &str, prepare: impl FnOnce(&World) -> Result<T>) -> Result<()> {
    let world = World::new()?;
    let _kept = prepare(&world)?;
    let mut command = world.host().command(std::env::current_exe().context("finding this executable")?);
    // Ignored tests come here only when asked for.
    command.env(INSIDE, "1").args([test, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"]);
    let finished = world.host().start(command)?.finish(TIMEOUT)?.success()?;
    ensure!(finished.stdout.contains("1 passed"), "no test of that name: {finished}");
    Ok(())
}

/// The name that the test runner knows the test by: `crate::module::test::{{closure}}` without crate and closure.
fn test_name<F>() -> String {
    let path = type_name::<F>();
    let path = path.split_once("::").map_or(path, |(_crate, rest)| rest);
    path.trim_end_matches("::{{closure}}").to_owned()
}
