//! Explanations (`URXE_EXPLAIN`): each mistake is explained once, by its cause and its remedy, and not at all without it.

mod calls;
mod completions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use urxe_tests::verbs::{Context, Options, PATIENCE, Pair};
use urxe_tests::{Stderr, in_world, in_world_with};

/// A mistake, and what is said about it.
struct Case {
    name: &'static str,
    act: fn(&Arc<Context>) -> Result<()>,
    /// Words of the line that explains it.
    cause: &'static str,
    remedy: &'static str,
    /// Words of the line by which the other end explains its part.
    far: Option<&'static str>,
}

const fn case(
    name: &'static str,
    cause: &'static str,
    remedy: &'static str,
    act: fn(&Arc<Context>) -> Result<()>,
) -> Case {
    Case { name, act, cause, remedy, far: None }
}

impl Case {
    const fn and_far(self, far: &'static str) -> Self {
        Self { far: Some(far), ..self }
    }
}

fn pair(context: &Arc<Context>) -> Result<Pair> {
    Pair::on(context, &Options::default())
}

/// Makes every mistake; returns what was printed meanwhile, which is something if it `is_explained`.
fn make_all(is_explained: bool) -> Result<Vec<(&'static Case, Vec<String>)>> {
    let mut stderr = Stderr::catch()?;
    let context = Context::open()?;
    let mut made = Vec::new();
    for case in calls::CASES.iter().chain(completions::CASES) {
        (case.act)(&context).with_context(|| case.name)?;
        while let Some(event) = context.async_event(Duration::ZERO)? {
            drop(event);
        }
        let mut lines = stderr.explanations()?;
        let wanted = 1 + usize::from(case.far.is_some());
        let deadline = Instant::now() + PATIENCE;
        // What another thread says may come later.
        while is_explained && lines.len() < wanted && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            lines.extend(stderr.explanations()?);
        }
        made.push((case, lines));
    }
    Ok(made)
}

impl Case {
    fn check(&self, lines: &[String]) -> Result<()> {
        let far = usize::from(self.far.is_some());
        ensure!(lines.len() == 1 + far, "{} lines, not {}", lines.len(), 1 + far);
        ensure!(lines.iter().all(|line| line.starts_with("urxe: ")), "not ours");
        let told = lines.iter().filter(|line| line.contains(self.cause) && line.contains(self.remedy)).count();
        ensure!(told >= 1, "{:?} and {:?} are in no line", self.cause, self.remedy);
        ensure!(self.far.is_none_or(|far| lines.iter().any(|line| line.contains(far))), "{:?} is in no line", self.far);
        ensure!(
            lines.iter().all(|line| lines.iter().filter(|other| *other == line).count() == 1),
            "a line comes twice"
        );
        Ok(())
    }
}

#[test]
fn every_mistake_is_explained_once() {
    let explain = |world: &urxe_tests::World| {
        world.host().set_env("URXE_EXPLAIN", "1");
        Ok(())
    };
    in_world_with(explain, || {
        ensure!(calls::CASES.len() + completions::CASES.len() >= 40);
        let mut wrong = String::new();
        for (case, lines) in make_all(true)? {
            if let Err(error) = case.check(&lines) {
                wrong += &format!("{}: {error}\n    {}\n", case.name, lines.join("\n    "));
            }
        }
        if wrong.is_empty() { Ok(()) } else { bail!("{wrong}") }
    });
}

#[test]
fn nothing_is_said_unless_asked() {
    in_world(|| {
        for (case, lines) in make_all(false)? {
            ensure!(lines.is_empty(), "{}: {lines:?}", case.name);
        }
        Ok(())
    });
}

#[test]
fn explanations_for_machines() {
    let explain = |world: &urxe_tests::World| {
        world.host().set_env("URXE_EXPLAIN", "json");
        Ok(())
    };
    in_world_with(explain, || {
        for (case, lines) in make_all(true)? {
            for line in lines {
                let object: serde_json::Value =
                    serde_json::from_str(&line).with_context(|| format!("{}: {line}", case.name))?;
                for field in ["kind", "code", "what", "why", "do"] {
                    ensure!(object[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {line}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_setting_that_makes_no_sense_is_refused() -> Result<()> {
    let world = urxe_tests::World::new()?;
    for (variables, expected) in [
        (&[("URXE_EXPLAIN", "maybe")][..], "--explain or URXE_EXPLAIN=maybe: expected 0, 1, json or failure"),
        (
            &[("URXE_PCAP_ROTATE", "often"), ("URXE_PCAP", "/nowhere/it")],
            "--pcap-rotate or URXE_PCAP_ROTATE=often: expected SIZE or SIZE,FILES",
        ),
        (&[("URXE_PCAP_SNAPLEN", "96")], "--pcap-snaplen or URXE_PCAP_SNAPLEN=96: captures nothing by itself"),
    ] {
        let mut command = world.host().command("ibv_devinfo");
        command.args(["-d", "urxe0"]).envs(variables.iter().copied());
        let finished = world.host().start(command)?.finish(urxe_tests::TIMEOUT)?.failure()?;
        ensure!(finished.stderr.contains(&format!("urxe: {expected}")), "{finished}");
    }
    Ok(())
}
