//! `urxe-device-plugin`: runs on each node of a Kubernetes cluster, as the DaemonSet of `daemonset.yaml`.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use urxe_device_plugin::kubelet::Service;
use urxe_device_plugin::plugin::Plugin;
use urxe_device_plugin::specification::Specification;

/// Gives pods that ask for urxe.dev/rdma an RDMA device.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Name of the resource that pods ask for
    #[arg(long, default_value = "urxe.dev/rdma")]
    resource: String,

    /// Containers of this node that may have the device at a time
    #[arg(long, default_value_t = 1000)]
    count: usize,

    /// The device of `urxe cdi` that they get: all, urxe0, …
    #[arg(long, default_value = "urxe0")]
    device: String,

    /// The command `urxe`, with liburxe.so beside it [default: beside this program]
    #[arg(long, value_name = "FILE")]
    urxe: Option<PathBuf>,

    /// Folder for what containers mount; the same path on the node
    #[arg(long, value_name = "DIR", default_value = "/var/lib/urxe/cdi")]
    dir: PathBuf,

    /// Folder of the node's CDI specifications
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,

    /// Folder of the kubelet's socket
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    plugins: PathBuf,

    /// Options of `urxe cdi` for all containers: -- --netdev eth0 --mtu 1024
    #[arg(last = true, value_name = "OPTIONS")]
    options: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    // As process 1 of a container: no signal without a handler ends it.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("urxe"));
    let urxe = args.urxe.map_or_else(beside, Ok).context("finding this program")?;
    let specification = Specification { urxe, files: args.dir, folder: args.cdi_dir, options: args.options };
    let name = specification.write(&args.device).await?;
    let plugin = Plugin::new(name, args.count);
    let service = Service { plugin, folder: args.plugins, resource: args.resource };
    tokio::select! {
        ended = service.run() => ended?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    service.remove_socket()
}
