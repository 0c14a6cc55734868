//! `urxe status`: counters of programs at work.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::artifacts::urxe;
use urxe_tests::verbs::{Op, Options, Pair, SendWr, Status};
use urxe_tests::{World, in_world};

fn status(args: &[&str]) -> Result<String> {
    let output = std::process::Command::new(urxe()?).arg("status").args(args).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn counters_of_a_program_at_work() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options { timeout: 8, ..Options::default() })?;
        let (local, remote) = (near.region(4096)?, far.region(4096)?);
        let write = |offset| SendWr::new(Op::Write(remote.at(offset)), &[local.sge(0, 1024)]);
        for _ in 0..10 {
            ensure!(near.complete(&write(0))?.status == Status::SUCCESS);
        }
        ensure!(near.complete(&write(4000))?.status == Status::REM_ACCESS_ERR);
        let pid = std::process::id();
        let value = |text: &str, name: &str| -> Result<u64> {
            let start = format!("urxe_{name}_total{{device=\"urxe0\",pid=\"{pid}\",");
            let line = text.lines().find(|line| line.starts_with(&start));
            let line = line.with_context(|| format!("no {name} of {pid}:\n{text}"))?;
            Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
        };
        let text = status(&["--metrics"])?;
        ensure!(value(&text, "rcvd_nak_remote_access")? == 1, "{text}");
        ensure!(value(&text, "sent_nak_remote_access")? == 1 && value(&text, "icrc_err")? == 0, "{text}");
        ensure!(value(&text, "tx_packets")? >= 22 && value(&text, "rx_packets")? >= 22, "{text}");
        ensure!(value(&text, "tx_bytes")? > 10 * 1024, "{text}");
        ensure!(text.lines().any(|line| line == "# TYPE urxe_icrc_err_total counter"), "{text}");
        let people = status(&[])?;
        ensure!(
            people.contains(&pid.to_string()) && people.contains("urxe0") && people.contains("sent_nak_remote_access"),
            "{people}"
        );
        ensure!(!people.contains("icrc_err") && status(&["--all"])?.contains("icrc_err"), "{people}");
        Ok(())
    });
}

/// A device that is closed is not shown any more.
#[test]
fn nothing_is_left_behind() -> Result<()> {
    let world = World::new()?;
    let ended = world.host().run("ibv_devinfo", &["-d", "urxe0"])?;
    ensure!(ended.stdout.contains("PORT_ACTIVE"));
    let shown = world.host().run(urxe()?, &["status"])?;
    ensure!(!shown.stdout.contains("ibv_devinfo"), "{shown}");
    Ok(())
}
