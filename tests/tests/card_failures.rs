//! `--personality mlx5`: errors come as a ConnectX tells them, and no sooner.

use anyhow::{Result, ensure};
use urxe_tests::Launcher;

fn told(launcher: &Launcher, options: &[&str], least_ms: &str) -> Result<String> {
    let program = launcher.world().dir().join("card_failures");
    let path = program.with_extension("c");
    std::fs::write(&path, include_str!("../programs/card_failures.c"))?;
    let (path, program) = (path.display().to_string(), program.display().to_string());
    launcher.host().run("gcc", &["-O2", "-Wall", "-Werror", "-o", &program, &path, "-libverbs"])?;
    Ok(launcher.try_run(options, &[&program, "1", least_ms])?.success()?.stdout)
}

/// Statuses and `vendor_err` of ConnectX-5 and -6; with a timeout of 1 and one try, a silent peer is given up after 440 ms.
#[test]
fn vendor_errors_and_timeouts_are_a_cards() -> Result<()> {
    let said = told(&Launcher::new()?, &["--personality", "mlx5"], "440")?;
    let wanted = "sge-length 4 0x53\nlkey 4 0x52\nno-local-write 4 0x33\nflushed 5 0xf5\nno-remote-write 9 0x8a\nrkey 10 0x88\n\
                  address 10 0x88\nno-receive 13 0x87\nsilent 12 0x81\nwaited\n";
    ensure!(said == wanted, "{said}");
    Ok(())
}

/// Other devices have the specification's timers, and nothing to add to a status.
#[test]
fn other_devices_say_nothing_more() -> Result<()> {
    let said = told(&Launcher::new()?, &["--personality", "pci"], "4")?;
    let statuses = [4, 4, 4, 5, 9, 10, 10, 13, 12];
    let lines: Vec<&str> = said.lines().collect();
    ensure!(lines.len() == statuses.len() + 1 && lines.last() == Some(&"waited"), "{said}");
    for (line, status) in lines.iter().zip(statuses) {
        ensure!(line.ends_with(&format!(" {status} 0x0")), "{said}");
    }
    Ok(())
}
