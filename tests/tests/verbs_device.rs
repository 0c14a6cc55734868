//! Attributes of the device, and symbols of the library.

use std::ffi::CStr;
use std::ffi::CString;
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::functions as f;
use urxe_ffi::verbs as v;
use urxe_tests::verbs::context::{DEVICE, device_names};
use urxe_tests::verbs::{Channel, Context};
use urxe_tests::{GID_DEFAULT, GID_IPV4, GID_IPV6, artifacts, in_world};

#[test]
fn one_device() {
    in_world(|| {
        ensure!(device_names()? == [DEVICE.to_str()?], "{:?}", device_names()?);
        let context = Context::open()?;
        // SAFETY: fields of a live context; the name is a string.
        unsafe {
            let device = (*context.raw()).device;
            ensure!(CStr::from_ptr(f::ibv_get_device_name(device)) == DEVICE);
            ensure!((*device).node_type == v::IBV_NODE_CA && (*device).transport_type == v::IBV_TRANSPORT_IB);
            ensure!((*context.raw()).num_comp_vectors >= 1);
        }
        Ok(())
    });
}

#[test]
fn attributes_of_the_device() {
    in_world(|| {
        let context = Context::open()?;
        let attr = context.query_device()?;
        // libfabric and UCX take 0xffffff for "unknown", and some programs 0.
        ensure!(attr.vendor_id != 0 && attr.vendor_id != 0xff_ffff, "vendor {:#x}", attr.vendor_id);
        ensure!(attr.phys_port_cnt == 1 && attr.max_pkeys == 1);
        ensure!(attr.atomic_cap == v::IBV_ATOMIC_HCA, "the level that consumers look for");
        ensure!(attr.node_guid != 0 && attr.sys_image_guid != 0);
        // SAFETY: the device of a live context.
        let guid = unsafe { f::ibv_get_device_guid((*context.raw()).device) };
        ensure!(guid == attr.node_guid, "sysfs says {guid:#x}, the device {:#x}", attr.node_guid);
        for (name, value) in [
            ("max_qp", attr.max_qp),
            ("max_qp_wr", attr.max_qp_wr),
            ("max_sge", attr.max_sge),
            ("max_sge_rd", attr.max_sge_rd),
            ("max_cq", attr.max_cq),
            ("max_cqe", attr.max_cqe),
            ("max_mr", attr.max_mr),
            ("max_pd", attr.max_pd),
            ("max_qp_rd_atom", attr.max_qp_rd_atom),
            ("max_qp_init_rd_atom", attr.max_qp_init_rd_atom),
            ("max_res_rd_atom", attr.max_res_rd_atom),
        ] {
            ensure!(value > 0, "{name} is {value}");
        }
        Ok(())
    });
}

#[test]
fn both_queries_of_the_device_agree() {
    in_world(|| {
        let context = Context::open()?;
        let (attr, extended) = (context.query_device()?, context.query_device_ex()?);
        // There is padding behind the last field, and nowhere else.
        let fields = |attr: &v::ibv_device_attr| {
            // SAFETY: plain numbers without gaps, all of which libibverbs has filled in.
            unsafe {
                let length = std::mem::offset_of!(v::ibv_device_attr, phys_port_cnt) + 1;
                std::slice::from_raw_parts((&raw const *attr).cast::<u8>(), length)
            }
            .to_vec()
        };
        ensure!(fields(&attr) == fields(&extended.orig_attr), "ibv_query_device and ibv_query_device_ex differ");
        ensure!(extended.phys_port_cnt_ex == 1);
        ensure!(extended.device_cap_flags_ex & 0xffff_ffff == u64::from(attr.device_cap_flags));
        ensure!(extended.comp_mask == 0 && extended.tm_caps.flags == 0);
        // Frames are cut by raw packet queue pairs alone.
        ensure!(extended.tso_caps.max_tso > 0);
        ensure!(extended.tso_caps.supported_qpts == 1 << v::IBV_QPT_RAW_PACKET);
        ensure!(extended.odp_caps.general_caps == u64::from(v::IBV_ODP_SUPPORT | v::IBV_ODP_SUPPORT_IMPLICIT));
        Ok(())
    });
}

#[test]
fn attributes_of_the_port() {
    in_world(|| {
        let context = Context::open()?;
        let port = context.query_port(1)?;
        ensure!(port.state == v::IBV_PORT_ACTIVE && u32::from(port.link_layer) == v::IBV_LINK_LAYER_ETHERNET);
        // `lo` has room for any.
        ensure!(port.max_mtu == v::IBV_MTU_4096 && port.active_mtu == v::IBV_MTU_4096, "MTU {}", port.active_mtu);
        ensure!(port.gid_tbl_len > 0 && port.pkey_tbl_len == 1 && port.lid == 0);
        ensure!(port.max_msg_sz >= 1 << 30, "messages of {}", port.max_msg_sz);
        // LinkUp (ibv_query_port(3)).
        ensure!(port.phys_state == 5 && port.active_width != 0 && port.active_speed != 0);
        for number in [0, 2, 255] {
            let error = context.query_port(number).err().with_context(|| format!("port {number}"))?;
            ensure!(error.0 == libc::EINVAL, "port {number}: {error}");
        }
        Ok(())
    });
}

/// Four ways to ask for GIDs. Index 0 is the default GID, then the addresses of the interface, IPv4 first.
#[test]
fn the_gid_table() {
    in_world(|| {
        let context = Context::open()?;
        let len = context.query_port(1)?.gid_tbl_len;
        let table = context.query_gid_table(usize::try_from(len)?)?;
        // SAFETY: a string.
        let lo = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        let mut filled = 0;
        for index in 0..len {
            let gid = context.query_gid(1, index).with_context(|| format!("GID {index}"))?;
            let number = u32::try_from(index)?;
            if gid == [0; 16] {
                // ibv_query_gid_ex(3) and the kernel: an empty entry is ENODATA.
                let error = context.query_gid_ex(1, number).err().with_context(|| format!("empty GID {index}"))?;
                ensure!(error.0 == libc::ENODATA, "empty GID {index}: {error}");
                continue;
            }
            let entry = context.query_gid_ex(1, number).with_context(|| format!("GID {index}"))?;
            let row = table.get(filled).with_context(|| format!("GID {index} is not in the table"))?;
            filled += 1;
            for (what, entry) in [("entry", &entry), ("row", row)] {
                // SAFETY: sixteen bytes, whatever they are.
                ensure!(unsafe { entry.gid.raw } == gid, "{what} {index}: another GID");
                ensure!(entry.gid_index == number && entry.port_num == 1, "{what} {index}: another place");
                ensure!(entry.gid_type == v::IBV_GID_TYPE_ROCE_V2, "{what} {index}: type {}", entry.gid_type);
                ensure!(entry.ndev_ifindex == lo, "{what} {index}: interface {}", entry.ndev_ifindex);
            }
        }
        ensure!(filled == table.len(), "{filled} GIDs, a table of {}", table.len());
        let gid = |index| context.query_gid(1, i32::try_from(index).unwrap_or(-1));
        ensure!(gid(GID_DEFAULT)?[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0], "{:x?}", gid(GID_DEFAULT)?);
        ensure!(gid(GID_IPV4)? == Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(), "{:x?}", gid(GID_IPV4)?);
        ensure!(gid(GID_IPV6)? == std::net::Ipv6Addr::LOCALHOST.octets(), "{:x?}", gid(GID_IPV6)?);
        ensure!(filled == 3, "{filled} GIDs");
        Ok(())
    });
}

/// Indices and ports that are not there.
#[test]
fn gids_that_are_not_there() {
    in_world(|| {
        let context = Context::open()?;
        let len = context.query_port(1)?.gid_tbl_len;
        for (port, index) in [(0, 0), (2, 0), (1, -1), (1, len), (1, i32::MAX)] {
            ensure!(context.query_gid(port, index).is_err(), "GID {index} of port {port}");
            let (port, index) = (u32::from(port), u32::try_from(index).unwrap_or(u32::MAX));
            let error = context.query_gid_ex(port, index).err();
            let error = error.with_context(|| format!("GID {index} of port {port}, ibv_query_gid_ex"))?;
            ensure!(error.0 == libc::EINVAL, "GID {index} of port {port}: {error}");
        }
        // Room for fewer than there are: EINVAL (ibv_query_gid_table(3)).
        let error = context.query_gid_table(1).err().context("a table of one")?;
        ensure!(error.0 == libc::EINVAL, "a table of one: {error}");
        Ok(())
    });
}

#[test]
fn the_pkey_table() {
    in_world(|| {
        let context = Context::open()?;
        ensure!(context.query_pkey(1, 0)? == 0xffff);
        // SAFETY: a live context.
        ensure!(unsafe { f::ibv_get_pkey_index(context.raw(), 1, 0xffff) } == 0);
        for (port, index) in [(1, 1), (1, -1), (2, 0), (0, 0)] {
            ensure!(context.query_pkey(port, index).is_err(), "P_Key {index} of port {port}");
        }
        Ok(())
    });
}

/// ibv_create_comp_channel(3) is answered by the library alone: what comes back are descriptors that can be polled.
#[test]
fn channels_have_descriptors_of_their_own() {
    in_world(|| {
        let context = Context::open()?;
        let channels = (0..10).map(|_| Channel::new(&context)).collect::<Result<Vec<_>, _>>()?;
        let mut fds: Vec<_> = channels.iter().map(|channel| channel.fd()).collect();
        fds.push(context.async_fd());
        for &fd in &fds {
            // SAFETY: asks only.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            ensure!(fd > 2 && flags == libc::FD_CLOEXEC, "descriptor {fd}: flags {flags}");
            ensure!(!urxe_tests::verbs::is_readable(fd, std::time::Duration::ZERO), "descriptor {fd} is readable");
        }
        fds.sort_unstable();
        fds.dedup();
        ensure!(fds.len() == 11, "shared descriptors: {fds:?}");
        Ok(())
    });
}

fn symbols(which: &str) -> Result<Vec<String>> {
    let library = artifacts::bin_dir()?.join("liburxe.so");
    let output = Command::new("nm").args(["-D", "-P", which]).arg(&library).output().context("nm (binutils)")?;
    ensure!(output.status.success(), "nm: {}", String::from_utf8_lossy(&output.stderr));
    let name = |line: &str| line.split([' ', '@']).next().map(str::to_owned);
    Ok(String::from_utf8(output.stdout)?.lines().filter_map(name).collect())
}

/// The library finds libibverbs at run time, in whatever version loads it: nothing of it may be linked.
#[test]
fn the_library_needs_nothing_of_libibverbs() -> Result<()> {
    let needed = symbols("--undefined-only")?;
    ensure!(needed.iter().any(|name| name == "mmap" || name == "close"), "nm found nothing: {needed:?}");
    let verbs: Vec<_> = needed.iter().filter(|name| name.starts_with("ibv_") || name.contains("verbs")).collect();
    ensure!(verbs.is_empty(), "linked: {verbs:?}");
    Ok(())
}

/// The library registers itself from its constructor. Its exports are names of libc's, for `urxe run` to preload, the function
/// that an installation's `liburxe-rdmavNN.so` calls, and the one that AddressSanitizer asks for options; others could clash with a
/// program's own.
#[test]
fn the_library_exports_names_of_libc_and_two_others() -> Result<()> {
    const OTHERS: [&str; 2] = ["urxe_register_provider", "__asan_default_options"];
    let exported = symbols("--defined-only")?;
    for needed in [&["open64"], &OTHERS[..]].concat() {
        ensure!(exported.iter().any(|name| name == needed), "no {needed}: {exported:?}");
    }
    for name in exported.into_iter().filter(|name| !OTHERS.contains(&name.as_str())) {
        let name = CString::new(name)?;
        // SAFETY: a name. This program's own `open` is libc's as well, so whatever is found is the C library's.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        ensure!(!found.is_null(), "not a name of libc's: {name:?}");
    }
    Ok(())
}
