//! `urxe top` at a terminal, while programs talk.

use std::os::unix::process::ExitStatusExt;

use anyhow::{Context, Result, ensure};
use urxe_tests::artifacts::urxe;
use urxe_tests::{Host, PingPong, TIMEOUT, Terminal, World, wait_until};

/// Starts `urxe top` at a terminal.
fn top(host: &Host, args: &[&str]) -> Result<Terminal> {
    let mut command = host.command(urxe()?);
    command.arg("top").args(["--interval", "0.1"]).args(args);
    Terminal::start(command, 30, 150)
}

/// Whether the screen is given back, with the settings of a shell's.
fn is_restored(terminal: &Terminal) -> Result<bool> {
    Ok(terminal.is_cooked()? && !terminal.is_full_screen())
}

#[test]
fn a_pingpong_is_watched() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    host.set_env("URXE_FAULTS", "drop=1%,opcode=SEND,seed=1");
    let pair = PingPong { iters: 100_000_000, ..PingPong::default() }.start(host, host)?;
    let mut terminal = top(host, &[])?;
    let is_busy = |screen: &str| {
        // Behind the peer's address and number: bytes per second, sent and received.
        let rates = |line: &str| {
            let words = line.split_whitespace().skip_while(|word| *word != "127.0.0.1").skip(2).take(2);
            line.contains("RTS") && words.filter(|rate| !["-", "0"].contains(rate)).count() == 2
        };
        let lines: Vec<&str> = screen.lines().collect();
        screen.contains("2 devices  2 queue pairs")
            && lines.iter().filter(|line| line.contains("ibv_rc_pingpong")).count() == 4
            && lines.iter().filter(|line| rates(line)).count() == 2
    };
    let screen = terminal.wait_for("both ends with their rates", is_busy)?;
    ensure!(terminal.is_full_screen() && !terminal.is_cooked()?, "{screen}");
    for name in ["PID", "PROGRAM", "DEVICE", "QP", "PEER", "TX B/s", "WINDOW", "RETRIES"] {
        ensure!(screen.contains(name), "no {name}:\n{screen}");
    }

    let client = pair.client.pid().to_string();
    terminal.press(&format!("/{client}\r"))?;
    terminal.wait_for("the client alone", |screen| {
        let rows = screen.lines().filter(|line| line.contains("ibv_rc_pingpong"));
        screen.contains(&format!("filter: {client}")) && rows.count() == 2
    })?;
    terminal.press("\r")?;
    let screen = terminal.wait_for("details of its queue pair", |screen| {
        let retried = |line: &str| line.starts_with("completer_retry_err");
        screen.contains("  RC  RTS") && screen.contains("PSN") && screen.lines().any(retried)
    })?;
    ensure!(screen.contains(&format!("process   {client} ibv_rc_pingpong, urxe0 on lo")), "{screen}");
    // A smaller window is drawn anew.
    terminal.resize(20, 60)?;
    terminal.wait_for("a smaller screen", |screen| {
        let last = screen.lines().last().unwrap_or_default();
        screen.contains("  RC  RTS") && last.starts_with("q quit") && last.len() <= 60 && screen.lines().count() == 20
    })?;
    pair.client.signal(libc::SIGKILL)?;
    pair.client.finish(TIMEOUT)?;
    terminal.wait_for("it is gone", |screen| screen.contains(" is gone; Esc goes back"))?;
    terminal.press("q")?;
    let status = terminal.wait()?;
    ensure!(status.success(), "{status}");
    wait_until("the terminal is restored", || is_restored(&terminal))
}

/// A key is seen whatever else happens at that moment, not with the next key.
#[test]
fn keys_beside_new_sizes_are_seen() -> Result<()> {
    let world = World::bare()?;
    let mut terminal = top(world.host(), &[])?;
    terminal.wait_for("the view", |screen| screen.contains("no process of this network uses urxe"))?;
    terminal.press("/")?;
    for round in 0..200 {
        terminal.resize(20 + round % 2, 80)?;
        let key = char::from(b'a' + (round % 26) as u8);
        terminal.press(&key.to_string())?;
        terminal.wait_for("the filter", |screen| screen.contains(&format!("filter: {key}")))?;
        // Backspace
        terminal.press("\u{7f}")?;
        terminal.wait_for("no filter", |screen| !screen.contains(&format!("filter: {key}")))?;
    }
    terminal.press("\rq")?;
    let status = terminal.wait()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

#[test]
fn signals_restore_the_terminal() -> Result<()> {
    let world = World::bare()?;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        let mut terminal = top(world.host(), &[])?;
        terminal.wait_for("the view", |screen| screen.contains("no process of this network uses urxe"))?;
        ensure!(terminal.is_full_screen() && !terminal.is_cooked()?);
        terminal.signal(signal)?;
        let status = terminal.wait()?;
        ensure!(status.signal() == Some(signal), "{signal}: {status}");
        wait_until("the terminal is restored", || is_restored(&terminal))?;
    }
    Ok(())
}

#[test]
fn a_stopped_view_gives_the_terminal_back_until_it_goes_on() -> Result<()> {
    let world = World::bare()?;
    let mut terminal = top(world.host(), &[])?;
    let is_shown = |screen: &str| screen.contains("no process of this network uses urxe");
    terminal.wait_for("the view", is_shown)?;
    terminal.press("\u{1a}")?;
    let pid = terminal.pid();
    let is_stopped = || -> Result<bool> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Ok(stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T ")))
    };
    wait_until("it is stopped", is_stopped)?;
    wait_until("the terminal is restored", || is_restored(&terminal))?;
    terminal.signal(libc::SIGCONT)?;
    wait_until("it goes on", || Ok(terminal.is_full_screen()))?;
    terminal.wait_for("the view", is_shown)?;
    // Control-C is a key here.
    terminal.press("\u{3}")?;
    let status = terminal.wait()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

#[test]
fn without_a_terminal_it_says_what_to_do() -> Result<()> {
    let world = World::bare()?;
    let ended = world.host().try_run(urxe()?, &["top"])?;
    ensure!(ended.status.code() == Some(2) && ended.stdout.is_empty(), "{ended}");
    ensure!(ended.stderr == "urxe: `urxe top` needs a terminal; for pipes there is: urxe status --watch\n", "{ended}");
    let ended = world.host().try_run(urxe()?, &["top", "--sort", "nonsense"])?;
    ensure!(ended.stderr.contains("no such column; there are DEVICE, DROPS, "), "{ended}");
    let mut command = world.host().command(urxe()?);
    command.arg("top");
    let mut dumb = command;
    dumb.env("TERM", "dumb");
    let output = dumb.output().context("starting urxe")?;
    ensure!(output.status.code() == Some(2), "{output:?}");
    Ok(())
}
