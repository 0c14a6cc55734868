//! `urxe cdi`: devices for containers, in the words of the Container Device Interface.
//!
//! A container engine that is asked for `urxe.dev/rdma=urxe0` mounts one folder, read-only, and `/etc/ld.so.preload`: the
//! image needs nothing of urxe's. What `urxe run` does by variables the dynamic linker does by that file, which glibc reads
//! and musl does not, so that an image with musl keeps working; the hook [`check`] refuses such an image in a line.
//!
//! ```text
//! DIR (default /var/lib/urxe/cdi)      /opt/urxe in the container
//! ├── manifest                         what `urxe cdi --remove` removes
//! ├── urxe, liburxe.so
//! ├── ld.so.preload                    /etc/ld.so.preload in the container
//! └── devices/urxe0, …, all            URXE_RUN: the tree of one device, and of all
//! ```

pub(crate) mod check;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use urxe_options::{Choices, DEFAULT_NETDEV_VARIABLE, DEVICE_NAME, NETDEV, RUN_USERS_LOCK, RUN_VARIABLE};

use crate::layout::{DEV_DIR, RDMA_CM};
use crate::options::Options;
use crate::plan::{self, Plan};
use crate::sysfs::{self, Netdev, Slot};
use crate::{glibc, library, out};

/// Vendor and class of the devices (`kind` of the specification).
const KIND: &str = "urxe.dev/rdma";

/// The first version that has all that is written here; every engine reads it.
const CDI_VERSION: &str = "0.3.0";

/// Where containers see the folder.
const INSIDE: &str = "/opt/urxe";

/// A list of libraries that glibc's dynamic linker loads into every program (ld.so(8)).
const PRELOAD_FILE: &str = "/etc/ld.so.preload";

/// The device that is all devices.
const ALL_DEVICES: &str = "all";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,

    /// Keep what containers mount in this folder [default: /var/lib/urxe/cdi, or below ~/.local/share for other users]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Remove that folder
    #[arg(long)]
    remove: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let dir = args.dir.clone().map_or_else(default_dir, Ok)?;
    let dir = std::path::absolute(&dir).with_context(|| format!("--dir {}", dir.display()))?;
    check_owners(&dir)?;
    let manifest = dir.join("manifest");
    if args.remove {
        let removed = plan::remove(&manifest)?;
        let nothing = format!("nothing to do: {} does not exist", manifest.display());
        return out::print(&format!("{}\n", if removed { "removed" } else { &nothing }));
    }
    let settings = args.options.settings()?;
    settings.observations()?;
    let variables: Vec<(&str, &str)> = settings.variables().collect();
    let value = |wanted: &str| variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned());
    let choices = Choices::new(value)?;
    // As they were written: `auto` is for the container to find out.
    let netdevs = value(NETDEV.variable);
    let netdevs: Vec<&str> = netdevs.iter().flat_map(|list| list.split(',')).map(str::trim).collect();
    let devices: Vec<Device<'_>> = choices
        .devices
        .iter()
        .enumerate()
        .map(|(index, device)| Device { index, name: &device.name, netdev: netdevs.get(index).copied() })
        .collect();
    for device in &devices {
        ensure!(
            device.name != ALL_DEVICES,
            "--device-name {ALL_DEVICES}: this is the name of all devices, choose another"
        );
        let ends = |name: &str| name.starts_with(char::is_alphanumeric) && name.ends_with(char::is_alphanumeric);
        ensure!(ends(device.name), "--device-name {}: engines want a letter or digit at both ends", device.name);
    }
    write(&dir, &manifest, &devices, &choices)?;
    let others: Vec<(&str, &str)> =
        variables.iter().copied().filter(|(name, _)| ![NETDEV.variable, DEVICE_NAME.variable].contains(name)).collect();
    out::print(&format!("{:#}\n", specification(&dir, &devices, &others)?))?;
    // SAFETY: `geteuid` has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        out::complain(&format_args!(
            "for engines of this user only: those of root would run a program of {}, which root does not own",
            dir.display()
        ));
    }
    if let Some(needed) = glibc::newest(&std::fs::read(library::beside_this_command()?)?) {
        out::complain(&format_args!("images need glibc {needed} or newer, and a libibverbs of rdma-core 36 or newer"));
    }
    Ok(())
}

fn default_dir() -> Result<PathBuf> {
    // SAFETY: `geteuid` has no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        return Ok("/var/lib/urxe/cdi".into());
    }
    let data = std::env::var_os("XDG_DATA_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    Ok(data.or_else(home).context("neither HOME nor XDG_DATA_HOME is set: say where with --dir")?.join("urxe/cdi"))
}

/// Links in one path, as many as Linux follows (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Refuses a folder that another user can change: engines run `urxe` in it as root, and its manifest names files to remove.
fn check_owners(dir: &Path) -> Result<()> {
    let passed = passed(dir).with_context(|| dir.display().to_string())?;
    // In a user namespace, the root folder's may have no other names than the overflow user's and group's.
    let root = std::fs::symlink_metadata("/")?;
    // SAFETY: `geteuid` and `getegid` have no preconditions.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    for path in &passed {
        let metadata = path.symlink_metadata()?;
        // In a folder with the sticky bit, as /tmp, others cannot touch what is there.
        let is_sticky = metadata.mode() & libc::S_ISVTX != 0 && Some(path) != passed.last();
        let trusts_group = [0, group, root.gid()].contains(&metadata.gid());
        let others = if trusts_group { libc::S_IWOTH } else { libc::S_IWOTH | libc::S_IWGRP };
        let is_open = metadata.is_dir() && metadata.mode() & others != 0 && !is_sticky;
        ensure!(
            [0, user, root.uid()].contains(&metadata.uid()) && !is_open,
            "{}: other users can change {}, and container engines run a program of it as root: choose another folder",
            dir.display(),
            path.display()
        );
    }
    Ok(())
}

/// Returns the folders and links on the way to `dir`, as far as it is there, each link followed: the last one is `dir`, or the
/// folder that it is to be made in.
fn passed(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut passed = vec![PathBuf::from("/")];
    let mut at = PathBuf::from("/");
    // What is still ahead, the next name last.
    let names = |path: &Path| path.components().rev().map(|it| it.as_os_str().to_owned()).collect::<Vec<_>>();
    let mut ahead = names(&std::path::absolute(dir)?);
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        match next.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                ahead.extend(names(&next.read_link()?));
            }
            Ok(_) => at.clone_from(&next),
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
        passed.push(next);
    }
    // The end of a link that leads up, say.
    passed.push(at);
    Ok(passed)
}

/// A device, and the interface in the container if it was named.
struct Device<'a> {
    index: usize,
    name: &'a str,
    netdev: Option<&'a str>,
}

impl Device<'_> {
    /// The interface that only the container knows is none here.
    fn slot(&self) -> Slot<'_> {
        let name = self.netdev.filter(|name| *name != "auto");
        Slot { name: self.name.to_owned(), netdev: Some(Netdev::in_another_namespace(self.index, name)) }
    }
}

/// Writes the folder, or writes it anew: containers that run keep the library that they have mapped.
fn write(dir: &Path, manifest: &Path, devices: &[Device<'_>], choices: &Choices) -> Result<()> {
    let mut plan = Plan::default();
    plan.program(dir.join("urxe"), &std::env::current_exe().context("finding this executable")?);
    plan.copy(dir.join(library::NAME), &library::beside_this_command()?);
    plan.text(dir.join("ld.so.preload"), format!("{INSIDE}/{}\n", library::NAME));
    for device in devices {
        add_tree(&mut plan, &tree(dir, device.name), &[device.slot()], choices);
    }
    let all: Vec<Slot<'_>> = devices.iter().map(Device::slot).collect();
    add_tree(&mut plan, &tree(dir, ALL_DEVICES), &all, choices);
    plan.apply(manifest)
}

fn tree(dir: &Path, name: &str) -> PathBuf {
    dir.join("devices").join(name)
}

/// Adds what the preloaded library shows, as a folder of `urxe run` has it.
fn add_tree(plan: &mut Plan, root: &Path, slots: &[Slot<'_>], choices: &Choices) {
    plan.text(root.join(RUN_USERS_LOCK), "");
    sysfs::add_kernel_tree(plan, &root.join("sys"), slots, choices.personality, None);
    let dev = root.join(DEV_DIR.trim_start_matches('/'));
    for name in (0..slots.len()).map(|index| format!("uverbs{index}")).chain([RDMA_CM.to_owned()]) {
        // The container's own.
        plan.link(dev.join(name), "/dev/null");
    }
}

/// The specification (SPEC.md of cncf-tags/container-device-interface).
fn specification(dir: &Path, devices: &[Device<'_>], variables: &[(&str, &str)]) -> Result<Value> {
    let text =
        |path: &Path| path.to_str().map(ToOwned::to_owned).with_context(|| format!("{}: not UTF-8", path.display()));
    let mount = |from: &Path, to: &str| {
        anyhow::Ok(
            json!({ "hostPath": text(from)?, "containerPath": to, "options": ["ro", "nosuid", "nodev", "bind"] }),
        )
    };
    let device = |name: &str, members: &[&Device<'_>]| {
        let mut env = vec![format!("{RUN_VARIABLE}={}", tree(Path::new(INSIDE), name).display())];
        let list =
            |what: &dyn Fn(&Device<'_>) -> String| members.iter().map(|it| what(it)).collect::<Vec<_>>().join(",");
        if members.iter().any(|member| member.netdev.is_some()) {
            env.push(format!("{}={}", NETDEV.variable, list(&|it| it.netdev.unwrap_or("auto").to_owned())));
        } else {
            // Not URXE_NETDEV, so that whoever starts a container may choose another.
            env.push(format!("{DEFAULT_NETDEV_VARIABLE}=auto"));
        }
        env.push(format!("{}={}", DEVICE_NAME.variable, list(&|it| it.name.to_owned())));
        env.extend(variables.iter().map(|(name, value)| format!("{name}={value}")));
        json!({ "name": name, "containerEdits": { "env": env } })
    };
    let mut list: Vec<Value> = devices.iter().map(|it| device(it.name, &[it])).collect();
    list.push(device(ALL_DEVICES, &devices.iter().collect::<Vec<_>>()));
    Ok(json!({
        "cdiVersion": CDI_VERSION,
        "kind": KIND,
        "devices": list,
        "containerEdits": {
            "mounts": [mount(dir, INSIDE)?, mount(&dir.join("ld.so.preload"), PRELOAD_FILE)?],
            "hooks": [{
                "hookName": "createRuntime",
                "path": text(&dir.join("urxe"))?,
                "args": ["urxe", check::SUBCOMMAND],
            }],
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(specification: &'a Value, name: &str) -> Vec<&'a str> {
        let devices = specification["devices"].as_array().unwrap();
        let device = devices.iter().find(|device| device["name"] == name).unwrap();
        device["containerEdits"]["env"].as_array().unwrap().iter().filter_map(Value::as_str).collect()
    }

    #[test]
    fn folders_that_others_can_change_are_refused() {
        use std::fs::{self, Permissions};
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let (own, open) = (root.path().join("own"), root.path().join("open"));
        fs::create_dir(&own).unwrap();
        fs::create_dir_all(open.join("own")).unwrap();
        std::os::unix::fs::symlink(&open, own.join("link")).unwrap();
        std::os::unix::fs::symlink(&own, open.join("back")).unwrap();
        std::os::unix::fs::symlink(open.join("back"), own.join("chain")).unwrap();
        for (mode, others) in [(0o777, false), (0o1777, true)] {
            fs::set_permissions(&open, Permissions::from_mode(mode)).unwrap();
            check_owners(&own.join("new/er")).unwrap();
            assert!(check_owners(&open).is_err() && check_owners(&open.join("new/er")).is_err());
            assert!(check_owners(&own.join("link/new")).is_err());
            assert_eq!(check_owners(&open.join("own/new")).is_ok(), others);
            // A link into the open folder, whose own link leads back.
            assert_eq!(check_owners(&own.join("chain/new")).is_ok(), others);
        }
        // SAFETY: `geteuid` has no preconditions.
        if unsafe { libc::geteuid() } == 0 {
            fs::set_permissions(&own, Permissions::from_mode(0o775)).unwrap();
            check_owners(&own.join("new")).unwrap();
            std::os::unix::fs::chown(&own, None, Some(12345)).unwrap();
            assert!(check_owners(&own.join("new")).is_err());
            fs::set_permissions(&own, Permissions::from_mode(0o755)).unwrap();
            check_owners(&own.join("new")).unwrap();
            std::os::unix::fs::chown(&own, Some(12345), None).unwrap();
            assert!(check_owners(&own.join("new")).is_err());
        }
    }

    #[test]
    fn each_device_and_all_of_them() {
        let devices = [
            Device { index: 0, name: "urxe0", netdev: Some("eth0") },
            Device { index: 1, name: "urxe1", netdev: Some("net1") },
        ];
        let said = specification(Path::new("/d"), &devices, &[("URXE_MTU", "1024")]).unwrap();
        assert_eq!(said["kind"], "urxe.dev/rdma");
        assert_eq!(
            env(&said, "urxe1"),
            ["URXE_RUN=/opt/urxe/devices/urxe1", "URXE_NETDEV=net1", "URXE_DEVICE_NAME=urxe1", "URXE_MTU=1024"]
        );
        assert_eq!(env(&said, "all")[1..3], ["URXE_NETDEV=eth0,net1", "URXE_DEVICE_NAME=urxe0,urxe1"]);
        assert_eq!(said["containerEdits"]["mounts"][1]["hostPath"], "/d/ld.so.preload");
        let said = specification(Path::new("/d"), &[Device { index: 0, name: "urxe0", netdev: None }], &[]).unwrap();
        assert_eq!(env(&said, "urxe0")[1], "URXE_DEFAULT_NETDEV=auto");
    }
}
