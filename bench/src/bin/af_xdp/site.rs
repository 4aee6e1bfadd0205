//! Where it happens: cables between two namespaces. Frames enter the one end of a cable as from a driver, and are
//! received at the other.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use podwire_bench::generator::{Outlet, PROCESSOR, ifindex};
use podwire_bench::kernel::{Attached, Program};
use podwire_harness::NetNs;

/// The processor of whoever receives.
pub const RECEIVER: usize = PROCESSOR + 1;

/// Two namespaces.
pub struct Site {
    from: NetNs,
    pub to: NetNs,
}

/// A veth pair between them.
pub struct Cable {
    pub outlet: Outlet,
    /// The interface at which frames arrive.
    pub to: String,
    /// The interface from which they come.
    pub from: String,
}

impl Site {
    /// Without cables.
    pub fn new() -> Result<Self> {
        Ok(Self { from: NetNs::new("from")?, to: NetNs::new("to")? })
    }

    /// Lays a cable. Its names are no other one's, also of another site: the kernel's threads are known by them.
    pub fn lay(&self) -> Result<Cable> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (from, to) = (format!("out{number}"), format!("in{number}"));
        self.from.ip(&[
            "link",
            "add",
            &from,
            "type",
            "veth",
            "peer",
            "name",
            &to,
            "netns",
            self.to.name(),
        ])?;
        self.from.ip(&["link", "set", &from, "up"])?;
        self.to.ip(&["link", "set", &to, "up"])?;
        // XDP frames reach the other end of a veth pair only with NAPI there, which GRO switches on.
        self.to.offload(&to, "gro", true)?;
        Ok(Cable { outlet: Outlet::at(&self.from, &from)?, to, from })
    }

    /// An XDP program at the end of a cable where frames arrive, which drops them all.
    pub fn drop_at(&self, cable: &Cable) -> Result<Attached> {
        let interface = ifindex(&self.to, &cable.to)?;
        self.to.enter(move || Program::xdp_drop()?.attach(interface))
    }

    /// Runs work in the namespace where frames leave, on a thread of its own.
    pub fn from(&self) -> &NetNs {
        &self.from
    }

    /// Has the kernel receive at a cable's end on a thread of its own, on the receiver's processor, as a network
    /// card's interrupts would be bound there, and before other work. Without, it receives where frames are sent.
    pub fn receive_apart(&self, cable: &Cable) -> Result<Worker> {
        let name = format!("napi/{}-", cable.to);
        let before = Worker::named(&name);
        let knob = format!("echo 1 > /sys/class/net/{}/threaded", cable.to);
        podwire_harness::run_ok(&["ip", "netns", "exec", self.to.name(), "sh", "-c", &knob])
            .context("threads for the receiving kernel (NAPI)")?;
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(2) {
            // Those of an earlier run may not have ended yet.
            if let Some(&id) = Worker::named(&name).difference(&before).next() {
                let worker = Worker(id);
                pin(worker.0, RECEIVER)?;
                // An interrupt does not wait for a program to be at its end either.
                podwire_harness::run_ok(&["chrt", "-f", "-p", "1", &worker.0.to_string()])?;
                return Ok(worker);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        anyhow::bail!("the kernel made no thread for {}", cable.to)
    }
}

/// Binds a thread to a processor; 0 is the calling one.
pub fn pin(thread: i32, processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor)?;
    sched_setaffinity(Pid::from_raw(thread), &set).context("the bench needs two processors")
}

/// A thread whose processor time is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Worker(pub i32);

impl Worker {
    /// Threads whose names begin so.
    fn named(name: &str) -> BTreeSet<i32> {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
            comm.starts_with(name).then_some(id)
        })
        .collect()
    }

    /// Its processor time in ns; exact once it sleeps.
    pub fn time(self) -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.0))?;
        text.split(' ').next().and_then(|ns| ns.parse().ok()).context("no processor time")
    }
}

/// Processor time in ns of all threads of a process.
pub fn process_time(id: u32) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(format!("/proc/{id}/task"))?.flatten() {
        let name = entry.file_name();
        if let Some(id) = name.to_str().and_then(|name| name.parse().ok()) {
            sum += Worker(id).time().unwrap_or(0);
        }
    }
    Ok(sum)
}
