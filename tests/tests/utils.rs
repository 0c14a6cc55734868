//! Stock programs of ibverbs-utils: the five ping-pongs with every option each has, `ibv_devinfo -v`, `ibv_asyncwatch`.

use anyhow::{Context, Result, ensure};
use urxe_tests::{Finished, Host, TIMEOUT, World, artifacts, ping_pong, wait_for_listener, wait_until};

/// Option sets: those of all five programs, then each one's own.
const EVERY_PROGRAM: [&str; 4] = ["", "-e", "-s 1 -l 3", "-i 1 -s 1000"];
const PROGRAMS: [(&str, &[&str]); 5] = [
    (
        "ibv_rc_pingpong",
        &[
            "-c",
            "-r 64",
            "-m 4096 -s 100000 -n 50 -c",
            "-o",
            "-o -c -e",
            "-O",
            "-O -c",
            "-o -P",
            "-O -P -c",
            // Not with -e: the program takes an event without a completion, which it may well get, for an error.
            "-t",
            "-N",
            "-N -c -e",
            "-N -t",
            "-j",
            "-j -c",
            "-j -N -c",
        ],
    ),
    ("ibv_uc_pingpong", &["-c", "-r 64", "-m 512 -n 50 -c", "-m 2048 -e"]),
    ("ibv_ud_pingpong", &["-c", "-r 64", "-n 50 -s 1024 -c -e"]),
    ("ibv_srq_pingpong", &["-c", "-r 64", "-q 1", "-q 32 -n 200", "-m 256 -c -e", "-o", "-o -c"]),
    ("ibv_xsrq_pingpong", &["-n 20", "-m 1024 -n 20 -e", "-o", "-c 1"]),
];

/// Options of the server alone: the number of its clients.
const SERVER_ONLY: [(&str, &str); 1] = [("ibv_xsrq_pingpong", "-c 1")];

/// Runs both ends: server and client.
fn exchange(host: &Host, program: &str, options: &str) -> Result<(Finished, Finished)> {
    let port = host.next_port();
    let port_word = port.to_string();
    let common = ["-d", "urxe0", "-g", "1", "-p", &port_word];
    let own: Vec<&str> = options.split_whitespace().collect();
    let server = host.spawn(program, &[&common[..], &own].concat())?;
    let server = wait_for_listener(host, server, port)?;
    let own = if SERVER_ONLY.contains(&(program, options)) { Vec::new() } else { own };
    let client = host.try_run(program, &[&common[..], &own, &["127.0.0.1"]].concat())?;
    let server = server.finish(TIMEOUT)?;
    for end in [&client, &server].into_iter().filter(|end| end.status.success()) {
        let exchanged = [" bytes in ", "success"].iter().any(|said| end.stdout.contains(said));
        ensure!(exchanged && !end.stdout.contains("invalid data"), "not all was exchanged: {end}");
    }
    Ok((server, client))
}

fn every_option(program: &str) -> Result<()> {
    let world = World::new()?;
    let (_, own) = PROGRAMS.iter().find(|(name, _)| *name == program).context("no such row")?;
    for options in EVERY_PROGRAM.iter().chain(*own) {
        ping_pong(program, || exchange(world.host(), program, options))
            .with_context(|| format!("{program} {options}"))?;
    }
    Ok(())
}

#[test]
fn rc_pingpong() -> Result<()> {
    every_option("ibv_rc_pingpong")
}

#[test]
fn uc_pingpong() -> Result<()> {
    every_option("ibv_uc_pingpong")
}

#[test]
fn ud_pingpong() -> Result<()> {
    every_option("ibv_ud_pingpong")
}

#[test]
fn srq_pingpong() -> Result<()> {
    every_option("ibv_srq_pingpong")
}

#[test]
fn xsrq_pingpong() -> Result<()> {
    every_option("ibv_xsrq_pingpong")
}

#[test]
fn devinfo_tells_all() -> Result<()> {
    let world = World::new()?;
    let told = world.host().run("ibv_devinfo", &["-v", "-d", "urxe0"])?;
    for wanted in ["InfiniBand (0)", "PORT_ACTIVE", "RoCE v2", "max_srq:", "general_odp_caps:"] {
        ensure!(told.stdout.contains(wanted), "no {wanted:?} in {told}");
    }
    Ok(())
}

#[test]
fn asyncwatch_is_told_of_addresses() -> Result<()> {
    let world = World::new()?;
    // By itself it would keep back what it prints into a pipe.
    let watch = world.host().spawn("stdbuf", &["-oL", "ibv_asyncwatch", "-d", "urxe0"])?;
    wait_until("it watches", || Ok(watch.stdout_so_far().contains("urxe0: async event FD")))?;
    world.host().run("ip", &["address", "add", "127.0.0.9/8", "dev", "lo"])?;
    // IBV_EVENT_GID_CHANGE.
    wait_until("it tells of the address", || Ok(watch.stdout_so_far().contains("(18), port 1")))?;
    watch.signal(libc::SIGTERM)?;
    watch.finish(TIMEOUT)?;
    Ok(())
}

/// People look for the text that a program has printed: that of `ibv_wc_status_str(3)`, for every completion status.
#[test]
fn codes_are_found_by_what_programs_print() -> Result<()> {
    const TEXTS: &str = "import ctypes
text = ctypes.CDLL('libibverbs.so.1').ibv_wc_status_str
text.restype = ctypes.c_char_p
for number in range(24): print(text(number).decode())";
    let world = World::bare()?;
    let texts = world.host().run("/usr/bin/python3", &["-c", TEXTS])?.stdout;
    ensure!(texts.lines().count() == 24, "{texts}");
    for (number, text) in texts.lines().enumerate() {
        let line = format!("Failed status {text} ({number}) for wr_id 2");
        let said = world.host().run(artifacts::urxe()?, &["explain", &line])?.stdout;
        ensure!(said.contains(&format!(" (completion status, {number})\n  means: ")), "{line}: {said}");
    }
    Ok(())
}
