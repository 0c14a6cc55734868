//! The Debian package, the tarball and the wheel: what is in them, and that what they do is undone. `make distributions` installs the
//! package with dpkg, in trees that may be changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use urxe_tests::{Snapshot, World, artifacts, write_program};

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Makes a package of what is tested, by `packaging/<kind>`, in `dir`.
fn make(kind: &str, dir: &Path) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(kind);
    let path = output(Command::new(script).arg(artifacts::bin_dir()?).arg(dir))?;
    Ok(path.trim_end().into())
}

fn contents(root: &Path, dir: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let metadata = path.symlink_metadata()?;
        if metadata.is_dir() {
            contents(root, &path, found)?;
        } else {
            let mode = if metadata.is_symlink() { 0 } else { metadata.permissions().mode() & 0o7777 };
            found.push(format!("{mode:o} {}", path.strip_prefix(root)?.display()));
        }
    }
    found.sort();
    Ok(())
}

/// README and all documents link only to what is in the package, or on the web.
fn links_lead_somewhere(folder: &Path) -> Result<()> {
    let mut all = Vec::new();
    contents(folder, folder, &mut all)?;
    let documents = all.iter().filter_map(|line| line.split_once(' ')).map(|(_, path)| folder.join(path));
    for document in documents.filter(|path| path.extension().is_some_and(|it| it == "md") && path.is_file()) {
        let text = fs::read_to_string(&document)?;
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            let path = link.split('#').next().unwrap_or_default();
            // Sources and workflows are not in packages.
            let is_ours = [".md", ".png", ".svg", ".yaml", ".yml", ".c", ".h"].iter().any(|end| path.ends_with(end));
            let is_source = path.contains("conformance/") || path.contains("tests/");
            let is_elsewhere = path.contains("://") || path.contains(".github/") || is_source && path.ends_with(".c");
            let at = document.with_file_name(path);
            let missing = is_ours && !is_elsewhere && !at.exists();
            ensure!(!missing, "{} links to {link}, which is not in the package", document.display());
        }
    }
    Ok(())
}

#[test]
fn the_debian_package_and_its_scripts() -> Result<()> {
    let world = World::bare()?;
    let host = world.host();
    let package = make("deb", world.dir())?;
    let tree = world.dir().join("tree");
    output(Command::new("dpkg-deb").arg("--raw-extract").args([&package, &tree]))?;

    let control = fs::read_to_string(tree.join("DEBIAN/control"))?;
    let depends = control.lines().find_map(|line| line.strip_prefix("Depends: ")).context("no Depends")?;
    ensure!(depends.starts_with("libc6 (>= 2.") && depends.contains("libibverbs1"), "{depends}");
    let version = output(Command::new(artifacts::urxe()?).arg("--version"))?;
    let version = version.trim_end().strip_prefix("urxe ").context("urxe --version")?;
    ensure!(control.contains(&format!("\nVersion: {version}\n")), "not version {version}: {control}");
    let mut found = Vec::new();
    contents(&tree, &tree.join("usr"), &mut found)?;
    let wanted = [
        "0 usr/bin/urxe",
        "644 usr/lib/urxe/liburxe.so",
        "644 usr/share/bash-completion/completions/urxe",
        "644 usr/share/doc/urxe/README.md",
        "644 usr/share/doc/urxe/copyright",
        "644 usr/share/fish/vendor_completions.d/urxe.fish",
        "644 usr/share/man/man1/urxe-run.1.gz",
        "644 usr/share/man/man1/urxe.1.gz",
        "644 usr/share/zsh/vendor-completions/_urxe",
        "755 usr/lib/urxe/urxe",
    ];
    let document =
        |path: &String| path.starts_with("644 usr/share/doc/urxe/") || path.starts_with("644 usr/share/man/man1/urxe-");
    ensure!(wanted.iter().all(|file| found.iter().any(|other| other == file)), "{found:#?}");
    found.retain(|file| !document(file) && !wanted.contains(&file.as_str()));
    ensure!(found.is_empty(), "these besides: {found:#?}");
    links_lead_somewhere(&tree.join("usr/share/doc/urxe"))?;
    output(Command::new("md5sum").args(["--check", "--strict", "DEBIAN/md5sums"]).current_dir(&tree))?;

    let script = |name: &str, argument: &str| {
        let mut command = host.command(tree.join("DEBIAN").join(name));
        let path = std::env::var("PATH").unwrap_or_default();
        command.arg(argument).env("PATH", format!("{}:{path}", tree.join("usr/bin").display()));
        host.start(command)?.finish(urxe_tests::TIMEOUT)?.success()
    };
    let before = Snapshot::of_machine(host)?;
    for (name, argument) in
        [("postinst", "configure"), ("prerm", "upgrade"), ("postinst", "configure"), ("prerm", "failed-upgrade")]
    {
        let said = script(name, argument)?;
        ensure!(said.stdout.is_empty() && said.stderr.is_empty(), "{said}");
    }
    host.set_env("SYSFS_PATH", "/var/lib/urxe/sysfs");
    let devices = host.run("ibv_devices", &[])?;
    ensure!(devices.stdout.contains("urxe0"), "{devices}");
    script("prerm", "remove")?;
    let left = before.difference(&Snapshot::of_machine(host)?);
    ensure!(left.is_empty(), "the package left traces: {left:#?}");

    // A machine with devices of its own: they stay, and the package is installed nevertheless.
    host.run("mkdir", &["/dev/infiniband"])?;
    host.run("touch", &["/dev/infiniband/uverbs0"])?;
    let before = Snapshot::of_machine(host)?;
    let said = script("postinst", "configure")?;
    ensure!(said.stderr.contains("/dev/infiniband/uverbs0 exists") && said.stderr.contains("urxe install"), "{said}");
    script("prerm", "remove")?;
    ensure!(before.difference(&Snapshot::of_machine(host)?).is_empty());
    Ok(())
}

#[test]
fn the_tarball_works_from_any_folder() -> Result<()> {
    let world = World::bare()?;
    let tarball = make("tarball", world.dir())?;
    let folder = world.dir().join("any where");
    fs::create_dir(&folder)?;
    output(Command::new("tar").arg("-xzf").arg(&tarball).arg("-C").arg(&folder).arg("--strip-components=1"))?;
    let mut found = Vec::new();
    contents(&folder, &folder, &mut found)?;
    for wanted in [
        "644 INSTALL",
        "644 LICENSE-APACHE",
        "644 LICENSE-MIT",
        "644 README.md",
        "644 liburxe.so",
        "755 urxe",
        "755 install.sh",
    ] {
        ensure!(found.iter().any(|file| file == wanted), "no {wanted}: {found:#?}");
    }
    links_lead_somewhere(&folder)?;

    let host = world.host();
    // A prefix of one's own, with a space in it, and nothing left of it afterwards.
    let prefix = world.dir().join("a prefix");
    let script = folder.join("install.sh");
    let arguments = ["--prefix", prefix.to_str().context("a path that is not UTF-8")?];
    let said = host.run(&script, &arguments)?;
    ensure!(said.stdout.contains("installed: ") && said.stdout.contains("is not in PATH"), "{said}");
    let devices = host.run(prefix.join("bin/urxe"), &["run", "--", "ibv_devices"])?;
    ensure!(devices.stdout.contains("urxe0"), "{devices}");
    for file in
        ["share/man/man1/urxe-run.1", "share/bash-completion/completions/urxe", "share/zsh/site-functions/_urxe"]
    {
        ensure!(prefix.join(file).is_file(), "no {file}");
    }
    host.run(&script, &[&["--uninstall"], &arguments[..]].concat())?;
    let mut left = Vec::new();
    contents(&prefix, &prefix, &mut left)?;
    ensure!(left.is_empty(), "{left:#?}");

    // A file that cannot be copied fails the installation.
    fs::rename(folder.join("liburxe.so"), folder.join("elsewhere.so"))?;
    let said = host.spawn(&script, &arguments)?.finish(urxe_tests::TIMEOUT)?.failure()?;
    ensure!(said.stderr.contains("liburxe.so") && !said.stdout.contains("installed: "), "{said}");
    fs::rename(folder.join("elsewhere.so"), folder.join("liburxe.so"))?;

    host.run(folder.join("urxe"), &["install"])?;
    host.set_env("SYSFS_PATH", "/var/lib/urxe/sysfs");
    let devices = host.run("ibv_devices", &[])?;
    ensure!(devices.stdout.contains("urxe0"), "{devices}");
    Ok(())
}

#[test]
fn the_wheel_puts_urxe_into_a_virtual_environment() -> Result<()> {
    let world = World::bare()?;
    let wheel = make("wheel", world.dir())?;
    let venv = world.dir().join("venv");
    output(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let pip = venv.join("bin/pip");
    let install = ["install", "--quiet", "--disable-pip-version-check", "--no-index"];
    output(Command::new(&pip).args(install).arg(&wheel))?;
    let devices = world.host().run(venv.join("bin/urxe"), &["run", "--", "ibv_devices"])?;
    ensure!(devices.stdout.contains("urxe0"), "{devices}");
    output(Command::new(&pip).args(["uninstall", "--quiet", "--yes", "urxe"]))?;
    ensure!(!venv.join("bin/urxe").exists() && !venv.join("bin/liburxe.so").exists());
    Ok(())
}

/// One line is enough where there is pipx.
#[test]
fn pipx_runs_the_wheel() -> Result<()> {
    let world = World::bare()?;
    let wheel = make("wheel", world.dir())?;
    let mut command = world.host().command("pipx");
    command.args(["run", "--spec"]).arg(&wheel).args(["urxe", "run", "--", "ibv_devices"]);
    // Nothing is downloaded, and nothing stays in the user's folders.
    command.env("PIP_NO_INDEX", "1").env("HOME", world.dir()).env("PIPX_HOME", world.dir().join("pipx"));
    let devices = world.host().start(command)?.finish(urxe_tests::TIMEOUT)?.success()?;
    ensure!(devices.stdout.contains("urxe0"), "{devices}");
    Ok(())
}

/// Components of a release, from `cargo metadata`.
#[test]
fn the_bill_of_materials_has_what_is_linked() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/bill-of-materials");
    output(Command::new(script).arg(dir.path()))?;
    let name = format!("urxe-{}-{}.cdx.json", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let bill: serde_json::Value = serde_json::from_str(&fs::read_to_string(dir.path().join(name))?)?;
    let components = bill["components"].as_array().context("no components")?;
    let has = |name: &str| components.iter().any(|component| component["name"] == name);
    ensure!(has("urxe-provider") && has("libc") && has("clap"), "{bill:#}");
    let libc = components.iter().find(|component| component["name"] == "libc").context("no libc")?;
    ensure!(libc["hashes"][0]["content"].as_str().is_some_and(|hash| hash.len() == 64), "{libc:#}");
    ensure!(!has("proptest") && !has("clap_derive") && !has("urxe-tests"), "not linked: {bill:#}");
    let licences = fs::read_to_string(dir.path().join("THIRD-PARTY-LICENSES.txt"))?;
    ensure!(licences.contains("\n  libc 0.2.") && licences.contains("Permission is hereby granted"), "{licences}");
    Ok(())
}

/// `make` says in one line that the compiler is too old, or not there.
#[test]
fn the_compiler_is_looked_at_first() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let rustc = dir.path().join("rustc");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/check-rust");
    let check = |version: &str| -> Result<(bool, String)> {
        write_program(&rustc, format!("#!/bin/sh\necho 'rustc {version} (abc 2026-01-01)'\n"))?;
        let said = Command::new(&script).arg("true").env("RUSTC", &rustc).output()?;
        Ok((said.status.success(), String::from_utf8(said.stderr)?))
    };
    for (version, fits) in [("1.88.0", true), ("1.100.0", true), ("2.0.0", true), ("1.87.0", false), ("1.9.0", false)] {
        let (success, said) = check(version)?;
        ensure!(success == fits, "{version}: {said}");
        ensure!(fits || (said.lines().count() == 1 && said.contains("urxe needs Rust 1.88 or newer")), "{said}");
    }
    let said = Command::new(&script).arg("/no/cargo").output()?;
    ensure!(String::from_utf8_lossy(&said.stderr).starts_with("no cargo here; urxe needs Rust"), "{said:?}");
    Ok(())
}
