//! `urxe top`: devices and queue pairs at a terminal, live.
//!
//! Three threads send what happens to one: keys of the terminal, signals, and every so often what the devices say ([`sample`]).
//! [`state`] is what is shown, [`mod@draw`] shows it.

mod cell;
mod columns;
mod detail;
mod draw;
mod sample;
mod state;
mod style;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crossterm::event::{self, Event as Input};
use ratatui::DefaultTerminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::status::{self, Found};
use columns::{DEVICES, QPS};
use sample::Sample;
use state::{Next, Top};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Ask the devices after so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = status::seconds)]
    interval: Duration,

    /// Sort by the column of this name, as RETRIES or "RX B/s"
    #[arg(long, value_name = "COLUMN", default_value = "TX B/s")]
    sort: String,

    /// Show what has all of these words: a process id, a program, a device, an address, a queue pair number, a state
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
}

/// Events while it runs.
enum Event {
    Input(Input),
    Found(Instant, Result<Found>),
    Signal(i32),
    /// A thread has ended: the terminal is gone, or it panicked.
    Ended,
}

/// Says [`Event::Ended`] when a thread ends, however it does.
struct Ending(Sender<Event>);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Ended);
    }
}

/// Exit status for what the command line asks for and this place cannot do.
const USAGE: u8 = 2;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut top = Top::new(args.filter.join(" "));
    if !top.sort_by(&args.sort) {
        let names = QPS.iter().map(|column| column.name).chain(DEVICES.iter().map(|column| column.name));
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names.dedup();
        bail!("--sort {}: there is no such column; there are {}", args.sort, names.join(", "));
    }
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if is_dumb || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        crate::out::complain(&"`urxe top` needs a terminal; for pipes there is: urxe status --watch");
        return Ok(ExitCode::from(USAGE));
    }
    // Restores the terminal before the message of a panic in any thread.
    let mut terminal = ratatui::try_init().context("setting up the terminal")?;
    let result = follow(&mut terminal, &mut top, args.interval);
    ratatui::try_restore().context("restoring the terminal")?;
    if let Some(signal) = result? {
        // Ends this process by the signal, for whoever waits for it.
        emulate_default_handler(signal)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows what happens until the user or a signal ends it.
fn follow(terminal: &mut DefaultTerminal, top: &mut Top, interval: Duration) -> Result<Option<i32>> {
    let (sender, events) = mpsc::channel();
    watch_signals(&sender)?;
    watch_devices(&sender, interval);
    watch_input(&sender);
    loop {
        terminal.draw(|frame| draw::draw(frame, top)).context("drawing")?;
        let next = match events.recv()? {
            Event::Input(Input::Key(key)) => top.press(key),
            Event::Input(_) => Next::Go,
            Event::Found(at, Ok(found)) => {
                top.take(Sample::new(at, &found));
                Next::Go
            }
            Event::Found(_, Err(error)) => {
                top.error = Some(format!("{error:#}"));
                Next::Go
            }
            Event::Signal(SIGTSTP) => Next::Suspend,
            Event::Signal(signal) => return Ok(Some(signal)),
            Event::Ended => bail!("a thread of `urxe top` has ended"),
        };
        match next {
            Next::Go => {}
            Next::Quit => return Ok(None),
            Next::Suspend => {
                ratatui::try_restore()?;
                emulate_default_handler(SIGTSTP)?;
                // Here again after SIGCONT. The new one draws all.
                *terminal = ratatui::try_init()?;
            }
        }
    }
}

fn watch_signals(sender: &Sender<Event>) -> Result<()> {
    // Control-C and Control-Z are keys here; from elsewhere they are signals.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP]).context("watching signals")?;
    let ending = Ending(sender.clone());
    thread::spawn(move || {
        for signal in signals.forever() {
            if ending.0.send(Event::Signal(signal)).is_err() {
                break;
            }
        }
    });
    Ok(())
}

fn watch_devices(sender: &Sender<Event>, interval: Duration) {
    let ending = Ending(sender.clone());
    thread::spawn(move || {
        loop {
            let found = status::look();
            if ending.0.send(Event::Found(Instant::now(), found)).is_err() {
                break;
            }
            thread::sleep(interval);
        }
    });
}

fn watch_input(sender: &Sender<Event>) {
    let ending = Ending(sender.clone());
    thread::spawn(move || {
        while let Ok(input) = event::read() {
            if ending.0.send(Event::Input(input)).is_err() {
                break;
            }
        }
    });
}
