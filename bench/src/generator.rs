//! The generator: frames enter a pod's interface as from the pod, on one processor, and everything up to their
//! end happens on that processor before the next batch is made. So the processor time of the generating thread is
//! what the whole way costs.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use podwire_harness::{NetNs, Pod};

use crate::kernel::{Attached, Program};

/// Where the generator runs; all else runs on the other processors.
pub const PROCESSOR: usize = 0;

/// Runs `work` on a thread that is kept, with those that it starts, off the generator's processor.
///
/// # Errors
/// On a machine with one processor; as `work` says.
pub fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let thread = std::thread::spawn(move || {
        let mut set = CpuSet::new();
        for processor in (0..CpuSet::count()).filter(|processor| *processor != PROCESSOR) {
            set.set(processor)?;
        }
        sched_setaffinity(Pid::from_raw(0), &set).context("the bench needs two processors")?;
        work()
    });
    thread.join().map_err(|_| anyhow!("the measuring thread panicked"))?
}

/// A pod's side of its cable, ready to send.
#[derive(Debug)]
pub struct Outlet {
    netns: File,
    program: Program,
    _known: Attached,
}

impl Outlet {
    /// For a pod. Its cable's other end takes frames in batches from now on.
    ///
    /// # Errors
    /// When there is no such pod.
    pub fn open(node: &NetNs, pod: &Pod) -> Result<Self> {
        // XDP frames reach the other end of a veth pair only with NAPI there, which GRO switches on.
        node.offload(&pod.interface, "gro", true)?;
        Self::at(&pod.netns, "eth0")
    }

    /// At an end of a veth pair whose other end has an XDP program, or GRO.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn at(netns: &NetNs, interface: &str) -> Result<Self> {
        // The kernel patches its code when it first sees an XDP program, and again when it has seen the last of it,
        // which takes it tens of milliseconds. While the program is at some interface, that happens once.
        let spare = format!("{interface}-s");
        netns.ip(&["link", "add", &spare, "type", "veth", "peer", "name", &format!("{interface}-t")])?;
        let (outlet, spare) = (ifindex(netns, interface)?, ifindex(netns, &spare)?);
        let (program, known) = netns.enter(move || {
            let program = Program::xdp_redirect(outlet)?;
            let known = program.attach(spare)?;
            Ok((program, known))
        })?;
        let netns = File::open(format!("/run/netns/{}", netns.name()))?;
        Ok(Self { netns, program, _known: known })
    }

    /// Brings the calling thread to where frames can be sent from.
    ///
    /// # Errors
    /// Without root.
    pub fn enter(&self) -> Result<()> {
        setns(&self.netns, CloneFlags::CLONE_NEWNET).context("entering a namespace")
    }

    /// Sends `count` frames, from a thread that is there.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn send(&self, frame: &[u8], count: u32) -> Result<()> {
        self.program.send(frame, count)
    }
}

/// The generating thread's view.
#[derive(Debug)]
pub struct Generator {
    softirq: Option<PathBuf>,
}

impl Generator {
    /// Makes the calling thread the generating one.
    ///
    /// # Errors
    /// When it may not choose its processor.
    pub fn become_it() -> Result<Self> {
        let mut set = CpuSet::new();
        set.set(PROCESSOR)?;
        sched_setaffinity(Pid::from_raw(0), &set)?;
        Ok(Self { softirq: softirq_times() })
    }

    /// Sends `count` frames out of a pod. Returns processor time in ns.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn send(&self, outlet: &Outlet, frame: &[u8], count: u32) -> Result<u64> {
        outlet.enter()?;
        let before = self.time()?;
        outlet.send(frame, count)?;
        Ok(self.time()?.saturating_sub(before))
    }

    /// Processor time of this thread and of the kernel's own thread for what is put off.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn time(&self) -> Result<u64> {
        let own = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
        let own = own.tv_sec() as u64 * 1_000_000_000 + own.tv_nsec() as u64;
        let put_off = match &self.softirq {
            Some(path) => fs::read_to_string(path)?.split(' ').next().and_then(|ns| ns.parse().ok()),
            None => None,
        };
        Ok(own + put_off.unwrap_or(0))
    }
}

fn softirq_times() -> Option<PathBuf> {
    let wanted = format!("ksoftirqd/{PROCESSOR}");
    fs::read_dir("/proc")
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == wanted))
        .map(|path| path.join("schedstat"))
}

/// Index of an interface.
///
/// # Errors
/// When there is no such interface.
pub fn ifindex(netns: &NetNs, interface: &str) -> Result<u32> {
    let text = netns.ip(&["-j", "link", "show", "dev", interface])?;
    let parsed: serde_json::Value = serde_json::from_str(&text)?;
    parsed[0]["ifindex"].as_u64().and_then(|index| u32::try_from(index).ok()).context("no index")
}

/// Hardware address of an interface.
///
/// # Errors
/// When there is no such interface.
pub fn mac(netns: &NetNs, interface: &str) -> Result<[u8; 6]> {
    let text = netns.ip(&["-j", "link", "show", "dev", interface])?;
    let parsed: serde_json::Value = serde_json::from_str(&text)?;
    let mut mac = [0; 6];
    let words = parsed[0]["address"].as_str().context("no address")?.split(':');
    for (byte, word) in mac.iter_mut().zip(words) {
        *byte = u8::from_str_radix(word, 16)?;
    }
    Ok(mac)
}
