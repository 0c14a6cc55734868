//! SIGKILL of any process at any moment leaves the others correct.
//!
//! `URXE_KILLS` sets how many processes die; `make soak` asks for 200.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use urxe_tests::{Leftovers, Perftest, PingPong, World, wait_until};

/// Pairs of which one end is killed now and then, and which are started anew.
const MORTAL: usize = 4;
/// Pairs that must finish.
const STEADY: usize = 4;
/// Deaths in one world; a new one has a new owner of the port, which may be anybody.
const A_WORLD: usize = 10;

#[test]
fn others_finish_whoever_dies() -> Result<()> {
    let kills = match std::env::var("URXE_KILLS") {
        Ok(text) => text.parse().with_context(|| format!("URXE_KILLS is not a number: {text}"))?,
        Err(_) => 2 * A_WORLD,
    };
    let mut seed = u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos());
    println!("seed {seed}");
    let mut random = |below: u64| {
        // Knuth's MMIX generator: any spread of moments will do.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut left = kills;
    let mut ways = ["udp", "shm"].into_iter().cycle();
    while left > 0 {
        let world = World::new()?;
        let way = ways.next().context("a cycle")?;
        world.host().set_env("URXE_LOOPBACK", way);
        // A steady pair that fails says whether it has ever had an answer; not in each world, since explanations stand in the data path.
        if random(2) == 0 {
            world.host().set_env("URXE_EXPLAIN", "failure");
        }
        let endless = PingPong { iters: u32::MAX >> 1, events: true, ..PingPong::default() };
        let finite = PingPong { iters: 4000, validate: true, ..endless.clone() };
        let mortal_first = random(2) == 0;
        let mut mortal = Vec::new();
        if mortal_first {
            mortal.push(endless.start(world.host(), world.host())?);
        }
        // Over UDP ibv_rc_pingpong gives up a peer that is not heard for half a second; until there is another owner of the port, and
        // each has had its turn, it may take longer: ACK timeouts of a second.
        let patient = ["-e", "-u", "18", "-n", "4000", "-s", "4096"];
        let start = |_| -> Result<Box<dyn FnOnce() -> Result<()>>> {
            if way == "udp" {
                let pair = Perftest::start("ib_send_lat", &patient, world.host(), world.host())?;
                return Ok(Box::new(move || pair.finish()));
            }
            let pair = finite.start(world.host(), world.host())?;
            Ok(Box::new(move || pair.finish()))
        };
        let mut steady = (0..STEADY).map(start).collect::<Result<Vec<_>>>()?;
        while mortal.len() < MORTAL {
            mortal.push(endless.start(world.host(), world.host())?);
        }
        for _ in 0..left.min(A_WORLD) {
            thread::sleep(Duration::from_micros(random(60_000)));
            let victim = mortal.swap_remove(usize::try_from(random(MORTAL as u64))?);
            let end = if random(2) == 0 { &victim.server } else { &victim.client };
            end.signal(libc::SIGKILL)?;
            drop(victim);
            mortal.push(endless.start(world.host(), world.host())?);
            left -= 1;
        }
        for (index, pair) in steady.drain(..).enumerate() {
            pair().with_context(|| format!("steady pair {index}, after {} deaths", kills - left))?;
        }
        drop(mortal);
        wait_until("nothing is left behind", || Ok(Leftovers::on(world.host())?.is_empty()))?;
    }
    Ok(())
}
