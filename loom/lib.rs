//! Lock-free parts of urxe under [loom], which runs a model in every interleaving of its threads with at most three
//! preemptions, and with every value that the memory model lets a load see: `make loom`.
#![cfg(all(test, loom))]

mod direct;
mod kept;
mod receives;
mod rings;
mod sleep_deadline;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}
