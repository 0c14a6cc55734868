//! Programs that a signal handler ends by exit(3), in the middle of a verb or of a call of rdma_cm.

use anyhow::{Context as _, Result, ensure};
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
        world.host().set_env("EXIT_AFTER_MS", &(20 + 7 * round).to_string());
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

/// The request of the interrupted rdma_connect has come by the time of the exit. Whoever received it then waited for the lock of rdma_connect,
/// in the same thread.
#[test]
fn a_handler_that_exits_does_not_wait_for_rdma_connect() -> Result<()> {
    let world = World::new()?;
    let program = world.dir().join("exit_in_connect");
    let program = program.to_str().context("a path that is not UTF-8")?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/exit_in_connect.c");
    let options = ["-D_GNU_SOURCE", "-O1", "-Wall", "-Werror", "-o", program, source, "-lrdmacm", "-libverbs"];
    world.host().run("cc", &options)?;
    // The background thread is sometimes quicker, and waits in its place.
    for _ in 0..5 {
        world.host().run(program, &[])?;
    }
    Ok(())
}
