//! Importing what another context of the process has (`ibv_import_device(3)`, `ibv_import_pd(3)`, `ibv_import_mr(3)`).

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::{functions as f, verbs as v};
use urxe_tests::in_world;
use urxe_tests::verbs::child::Child;
use urxe_tests::verbs::memory::pattern;
use urxe_tests::verbs::{Change, Context, Cq, End, Errno, Mr, Op, Options, PATIENCE, Pair, Pd, SendWr, Status};

/// A pair of which the near end is in an imported domain, and sends from an imported region.
#[test]
fn an_imported_region_is_the_region() {
    in_world(|| {
        let options = Options::default();
        let exporter = End::new(&Context::open()?, &options)?;
        let region = exporter.region(4096)?;
        region.pages().write(0, &pattern(1, 4096));

        let context = exporter.context.import()?;
        let pd = Pd::import(&context, exporter.pd.number())?;
        let imported = Mr::import(&pd, region.number(), region.pages().addr())?;
        ensure!((imported.lkey(), imported.rkey()) == (region.lkey(), region.rkey()));

        let far = End::new(&Context::open()?, &options)?;
        let (send_cq, recv_cq) = (Cq::new(&context, 8, None)?, Cq::new(&context, 8, None)?);
        let qp = urxe_tests::verbs::Qp::new(&pd, &send_cq, &recv_cq, &Default::default())?;
        let near = End { qp, send_cq, recv_cq, channel: None, pd, context };
        let pair = Pair { near, far };
        pair.connect(&options)?;
        let Pair { near, far } = &pair;
        let there = far.region(4096)?;
        let wc = near.complete(&SendWr::new(Op::Write(there.at(0)), &[imported.sge(0, 4096)]))?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        ensure!(there.pages().read(0, 4096) == pattern(1, 4096));

        // The imported queue pair counts as a user of the exporter's domain; the import itself does not.
        drop(region);
        ensure!(exporter.qp.destroy().is_ok() && exporter.pd.dealloc() == Err(Errno(libc::EBUSY)));
        near.qp.destroy()?;
        exporter.pd.dealloc().context("a domain that is only imported")?;
        // What the exporter has destroyed cannot be imported any more.
        ensure!(Mr::import(&near.pd, imported.number(), 0).err() == Some(Errno(libc::ENOENT)));
        ensure!(Pd::import(&near.context, near.pd.number()).err() == Some(Errno(libc::ENOENT)));
        Ok(())
    });
}

#[test]
fn numbers_that_stand_for_nothing_are_refused() {
    in_world(|| {
        let (one, two) = (Context::open()?, Context::open()?);
        let pd = Pd::new(&one)?;
        let region = Mr::alloc(&pd, 4096, 0)?;
        let imported = one.import()?;
        ensure!(Pd::import(&imported, pd.number() + 100).err() == Some(Errno(libc::ENOENT)));
        // Another context of the device has objects of its own.
        ensure!(Pd::import(&two, pd.number()).err() == Some(Errno(libc::ENOENT)));
        let other_pd = Pd::new(&imported)?;
        ensure!(Mr::import(&other_pd, region.number(), 0).err() == Some(Errno(libc::EINVAL)), "of another domain");
        // SAFETY: a live context.
        ensure!(unsafe { f::ibv_import_dm(imported.raw(), 77) }.is_null() && Errno::last() == Errno(libc::ENOENT));
        Ok(())
    });
}

/// An imported context has an asynchronous event file and a lifetime of its own.
#[test]
fn an_imported_context_is_a_context() {
    in_world(|| {
        let original = Context::open()?;
        let imported = original.import()?;
        let again = imported.import()?;
        original.close()?;
        again.close()?;
        let far = End::new(&Context::open()?, &Options::default())?;
        let near = End::new(&imported, &Options::default())?;
        near.connect(far.qp.number(), far.gid(&Options::default())?, &Options::default())?;
        // Nobody answers.
        far.qp.modify(&Change::to(v::IBV_QPS_RESET))?;
        near.qp.modify(&Change::to(v::IBV_QPS_SQD).with(v::IBV_QP_EN_SQD_ASYNC_NOTIFY, |attr| {
            attr.en_sqd_async_notify = 1;
        }))?;
        let event = imported.async_event(PATIENCE)?.context("no event on the imported context")?;
        ensure!(event.kind() == v::IBV_EVENT_SQ_DRAINED, "{}", event.name());
        Ok(())
    });
}

#[test]
fn descriptors_of_no_device_are_refused() {
    in_world(|| {
        fn refused(fd: i32) -> Result<Errno> {
            // SAFETY: a number.
            let imported = unsafe { f::ibv_import_device(fd) };
            ensure!(imported.is_null());
            Ok(Errno::last())
        }
        let context = Context::open()?;
        // SAFETY: a string, and descriptors of this process.
        let (foreign, file) = unsafe {
            (libc::open(c"/dev/infiniband/uverbs0".as_ptr(), libc::O_RDWR), libc::open(c"/".as_ptr(), libc::O_RDONLY))
        };
        ensure!(refused(-1)? == Errno(libc::EINVAL) && refused(file)? == Errno(libc::EINVAL));
        ensure!(refused(foreign)? == Errno(libc::EOPNOTSUPP), "a file of no context");
        // Another process that has the file: here by fork, elsewhere by SCM_RIGHTS.
        // SAFETY: a field of a live context.
        let fd = unsafe { (*context.raw()).cmd_fd };
        let child = Child::fork(|_| {
            // SAFETY: a descriptor.
            let duplicate = unsafe { libc::dup(fd) };
            ensure!(refused(duplicate)? == Errno(libc::EOPNOTSUPP));
            Ok(())
        })?;
        child.finish()?;
        // SAFETY: ours.
        unsafe { (libc::close(foreign), libc::close(file)) };
        Ok(())
    });
}
