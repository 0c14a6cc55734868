//! The Debian package, the tarball and the wheel: what is in them, and that what they do is undone. `make distributions` installs the
//! package with dpkg, in trees that may be changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use urxe_tests::{Snapshot, World, artifacts};

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
        "644 usr/share/doc/urxe/README.md",
        "644 usr/share/doc/urxe/copyright",
        "755 usr/lib/urxe/urxe",
    ];
    ensure!(found == wanted, "{found:#?}");
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
    ensure!(
        found
            == ["644 INSTALL", "644 LICENSE-APACHE", "644 LICENSE-MIT", "644 README.md", "644 liburxe.so", "755 urxe"],
        "{found:#?}"
    );

    let host = world.host();
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
