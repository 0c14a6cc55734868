//! `urxe install`.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use urxe_options::{Choices, LINK_LAYER, NAME, NETDEV};

use crate::layout::{Layout, PROVIDER_ABIS, RDMA_CM, library_name};
use crate::plan::Plan;
use crate::sysfs::{Netdev, Slot};
use crate::{device_node, devices, env, host, library, out, stub, sysfs, valgrind};

/// Devices that programs can choose interfaces for later, by `URXE_NETDEV`. More are installed if more are named.
const INSTALLED_DEVICES: usize = 4;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Install below this folder instead of for the whole machine; needs no root
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,

    /// Interfaces of urxe0, urxe1, …, for the GIDs that the sysfs tree shows
    #[arg(long = "netdev", env = "URXE_NETDEV", value_name = "LIST")]
    netdev: Option<String>,

    /// Kind of ports that the sysfs tree shows: ethernet or infiniband. Programs take it from the variable
    #[arg(long = "link-layer", env = "URXE_LINK_LAYER", value_name = "KIND")]
    link_layer: Option<String>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let Args { prefix, netdev, link_layer } = args;
    let layout = Layout::new(prefix.as_deref())?;
    require_root(&layout, "install")?;
    let library = library::beside_this_command()?;
    let chosen = [(NETDEV.variable, netdev), (LINK_LAYER.variable, link_layer)];
    let choices = Choices::new(|name| chosen.iter().find(|(variable, _)| *variable == name)?.1.clone())?;
    let interfaces = devices::interfaces(&choices)?;
    let devices = interfaces.len().max(INSTALLED_DEVICES);
    let slots: Vec<Slot<'_>> = (0..devices)
        .map(|slot| Slot { name: format!("{NAME}{slot}"), netdev: interfaces.get(slot).map(Netdev::from) })
        .collect();

    let mut plan = Plan::default();
    add_library(&mut plan, &layout.provider_dir()?, &library);
    sysfs::add_tree(&mut plan, &layout.sysfs(), &slots);
    plan.text(layout.suppressions(), valgrind::SUPPRESSIONS);
    if let Some(path) = layout.driver_file() {
        plan.text(path, "driver urxe\n");
    }
    if let Some(dir) = layout.dev_dir() {
        // A link is changed by whoever changes what it leads to: `chmod 660 /dev/infiniband/*` would be about /dev/null.
        let nodes = dir.parent().is_some_and(device_node::can_be_made);
        for name in device_names(devices) {
            let path = dir.join(name);
            if nodes { plan.null_device(path) } else { plan.link(path, "/dev/null") }
        }
        if let Some(path) = layout.tmpfiles() {
            plan.text(path, tmpfiles(&dir, nodes, devices));
        }
    }
    plan.apply(&layout.manifest())?;

    let urxe = env::this_command()?;
    let env = match &prefix {
        Some(prefix) => format!("{urxe} env --prefix {}", env::quoted(prefix)?),
        None => format!("{urxe} env"),
    };
    out::print(&format!("installed; to use it in this shell: eval \"$({env})\"\n"))?;
    let unusable = interfaces.iter().filter_map(|interface| Some(interface.check_usable().err()?.to_string()));
    for line in host::obstacles().into_iter().chain(unusable) {
        out::complain(&format_args!("warning: {line}"));
    }
    Ok(())
}

/// Refuses to touch the machine's own folders without the right to.
pub(crate) fn require_root(layout: &Layout, subcommand: &str) -> Result<()> {
    // SAFETY: `geteuid` has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if *layout == Layout::Machine && !root {
        bail!("needs root for the whole machine: run it with sudo, or `urxe {subcommand} --prefix DIR` as yourself");
    }
    Ok(())
}

/// The library, the stub that a libibverbs loads, and a link to the stub for every other ABI number.
fn add_library(plan: &mut Plan, dir: &Path, library: &Path) {
    let [first, others @ ..] = PROVIDER_ABIS.map(library_name);
    let installed = dir.join(library::NAME);
    plan.bytes(dir.join(&first), stub::elf(&installed));
    plan.copy(installed, library);
    for other in others {
        plan.link(dir.join(other), &first);
    }
}

/// Names of the character devices.
fn device_names(devices: usize) -> impl Iterator<Item = String> {
    (0..devices).map(|slot| format!("uverbs{slot}")).chain([RDMA_CM.to_owned()])
}

/// The character devices in the words of tmpfiles.d(5).
fn tmpfiles(dev_dir: &Path, nodes: bool, devices: usize) -> String {
    let dir = dev_dir.display();
    let line = |name| {
        if nodes {
            format!("c {dir}/{name} 0666 root root - 1:3\n")
        } else {
            format!("L {dir}/{name} - - - - /dev/null\n")
        }
    };
    format!("d {dir} 0755 root root -\n") + &device_names(devices).map(line).collect::<String>()
}
