//! Programs that a signal handler ends by exit(3), in the middle of a verb.

use anyhow::{Result, ensure};
use urxe_tests::{PingPong, TIMEOUT, World};

/// Both ends of a ping-pong over UDP end, whatever call of the library their handler interrupts.
#[test]
fn a_handler_that_exits_waits_for_nothing() -> Result<()> {
    let world = World::new()?;
    let library = world.dir().join("exit_in_handler.so");
    let library = library.to_str().unwrap_or_default();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/exit_in_handler.c");
    let options = ["-D_GNU_SOURCE", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, source];
    world.host().run("cc", &options)?;
    world.host().set_env("URXE_LOOPBACK", "udp");
    world.host().set_env("LD_PRELOAD", library);
    for round in 0..10 {
        world.host().set_env("EXIT_AFTER_MS", &(400 + 7 * round).to_string());
        let pair =
            PingPong { size: 64, iters: u32::MAX >> 1, ..PingPong::default() }.start(world.host(), world.host())?;
        for end in [pair.server, pair.client] {
            let finished = end.finish(TIMEOUT)?;
            // Which of the two goes first is open: the other may lose its peer.
            ensure!(finished.status.code().is_some(), "{finished}");
        }
    }
    Ok(())
}
