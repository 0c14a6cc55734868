//! `scripts/fuzz` keeps away from the machine's network: the target `ucma` takes RoCE's port, and whoever uses urxe
//! meanwhile would notice.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

/// A target that says where it runs, in the place of one that takes minutes to be built.
const TARGET: &str = "#!/bin/sh
{ readlink /proc/self/ns/net; ip -brief address show up; } >\"$PROGRAMS/${0##*/}.said\"
";

#[test]
fn targets_have_a_network_of_their_own() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let dir = tempfile::tempdir()?;
    let programs = dir.path().join("fuzz/here/release");
    let bin = dir.path().join("bin");
    let targets = ["first", "second"].map(|name| format!("{name}-of-{}", std::process::id()));
    let mut scripts = vec![
        (bin.join("rustc"), "#!/bin/sh\necho host: here\n"),
        (bin.join("cargo"), "#!/bin/sh\n"),
        (programs.join("seed"), "#!/bin/sh\n"),
    ];
    scripts.extend(targets.iter().map(|target| (programs.join(target), TARGET)));
    for (path, text) in scripts {
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH")?);
    let output = Command::new(root.join("scripts/fuzz"))
        .arg("1")
        .args(&targets)
        .env("PATH", path)
        .env("CARGO_TARGET_DIR", dir.path())
        .env("PROGRAMS", &programs)
        .output()?;
    for target in &targets {
        // Its corpus is empty, its log says nothing.
        let _ = fs::remove_dir(root.join("fuzz/corpus").join(target));
        let _ = fs::remove_file(root.join("fuzz/artifacts").join(format!("{target}.log")));
    }
    ensure!(output.status.success(), "{output:?}");
    let mut networks = vec![fs::read_link("/proc/self/ns/net")?.display().to_string()];
    for target in &targets {
        let said = fs::read_to_string(programs.join(format!("{target}.said")))?;
        let mut lines = said.lines().map(str::to_owned);
        networks.extend(lines.next());
        let interfaces: Vec<_> = lines.collect();
        ensure!(
            interfaces.len() == 1 && interfaces[0].starts_with("lo ") && interfaces[0].contains("127.0.0.1"),
            "{said}"
        );
    }
    networks.sort();
    networks.dedup();
    ensure!(networks.len() == 3, "a network is shared: {networks:?}");
    Ok(())
}
