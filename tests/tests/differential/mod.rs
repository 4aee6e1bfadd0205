//! Both sides of the comparison: the kernel with its pins, and a round of frames under one set of rules.

mod books;
mod round;
pub mod scene;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use podwire_datapath::core::abi::{CopyRow, CopyState, Direction};
use podwire_datapath::{Datapath, Engine, Hook, Mirror, Options, SessionOptions, Target};
use podwire_tests::model::{desired, random::Random};
use podwire_tests::test_run::Program;

pub use round::{Round, Tally};

/// The CPU that everything runs on: copies are numbered per CPU.
const CPU: u16 = 0;

/// A datapath and the programs that it has loaded.
pub struct Kernel {
    datapath: Datapath,
    interfaces: Vec<(String, u32)>,
    targets: Vec<Target>,
    from_pod: Program,
    to_pod: Program,
    mirror: Program,
    mirror_ifindex: u32,
    /// An interface that is no endpoint.
    stranger: u32,
    copy_mark: u32,
    slots: MapHandle,
    copy: MapHandle,
    sequences: MapHandle,
}

impl Kernel {
    /// Opens a datapath in the thread's namespace.
    pub fn open(bpffs: PathBuf) -> Result<Self> {
        let mut cpus = CpuSet::new();
        cpus.set(usize::from(CPU))?;
        sched_setaffinity(Pid::from_raw(0), &cpus)?;
        let options = Options { bpffs: bpffs.clone(), hook: Hook::Tcx, ..Options::default() };
        let (copy_mark, mirror_device) = (options.copy_mark, options.mirror_device.clone());
        let mut datapath = Datapath::open(options)?;
        let interfaces = scene::INTERFACES
            .iter()
            .map(|name| Ok(((*name).to_owned(), nix::net::if_::if_nametoindex(*name)?)))
            .collect::<Result<Vec<_>>>()?;
        let targets = scene::targets()?;
        // Everything, so that every program is attached and can be found by its link.
        let mut everything = desired::desired(&mut Random::new(0), &names(&interfaces), &[]);
        everything.mirrors.push(Mirror {
            name: "everything".into(),
            endpoints: everything.endpoints.iter().map(|endpoint| endpoint.name.clone()).collect(),
            directions: Direction::ALL.to_vec(),
            rules: Vec::new(),
            stateful: false,
            options: SessionOptions { engine: Engine::Clone, ..SessionOptions::default() },
            target: targets[0].clone(),
        });
        datapath.apply(&everything)?;
        let pins = bpffs.join(format!("v{}", podwire_datapath::core::abi::ABI_VERSION));
        let mirror_ifindex = nix::net::if_::if_nametoindex(mirror_device.as_str())?;
        let program = |ifindex, hook| Program::behind_link(&pins.join(format!("links/{ifindex}-{hook}")));
        Ok(Self {
            from_pod: program(interfaces[0].1, "ingress")?,
            to_pod: program(interfaces[0].1, "egress")?,
            mirror: program(mirror_ifindex, "egress")?,
            slots: MapHandle::from_pinned_path(pins.join("maps/INTERFACES"))?,
            copy: MapHandle::from_pinned_path(pins.join("maps/COPY"))?,
            sequences: MapHandle::from_pinned_path(pins.join("maps/SEQUENCES"))?,
            stranger: nix::net::if_::if_nametoindex("uplink0")?,
            datapath,
            interfaces,
            targets,
            mirror_ifindex,
            copy_mark,
        })
    }

    /// Puts other rules in force, and the model's tables beside them.
    pub fn next_rules(&mut self, random: &mut Random) -> Result<Round<'_>> {
        let desired = desired::desired(random, &names(&self.interfaces), &self.targets);
        let applied = self.datapath.apply(&desired)?;
        Round::new(self, desired, &applied)
    }

    /// Takes everything down.
    pub fn remove(self) -> Result<()> {
        Ok(self.datapath.remove()?)
    }

    /// The slot of an endpoint's interface.
    fn slot(&self, ifindex: u32) -> Result<u32> {
        let row = self.slots.lookup(&ifindex.to_ne_bytes(), MapFlags::ANY)?.context("no such row")?;
        let stored = u32::from_ne_bytes(row.as_slice().try_into()?);
        stored.checked_sub(1).with_context(|| format!("interface {ifindex} has no slot"))
    }

    /// The next number of a session.
    fn sequence(&self, session: u16) -> Result<u32> {
        let row = self.sequences.lookup(&u32::from(session).to_ne_bytes(), MapFlags::ANY)?;
        Ok(u64::from_ne_bytes(row.context("no such row")?.as_slice().try_into()?) as u32)
    }

    /// Leaves a copy's row for the mirror program, on this CPU alone.
    fn announce(&self, row: &CopyRow) -> Result<()> {
        let idle = CopyRow { state: CopyState::Idle as u32, ..*row };
        let rows: Vec<Vec<u8>> = (0..libbpf_rs::num_possible_cpus()?)
            .map(|cpu| bytes(if cpu == usize::from(CPU) { row } else { &idle }))
            .collect();
        ensure!(rows[0].len() == size_of::<CopyRow>(), "CopyRow has other fields than this test knows");
        Ok(self.copy.update_percpu(&0u32.to_ne_bytes(), &rows, MapFlags::ANY)?)
    }
}

fn names(interfaces: &[(String, u32)]) -> Vec<String> {
    interfaces.iter().map(|(name, _)| name.clone()).collect()
}

/// A row as it lies in its map.
fn bytes(row: &CopyRow) -> Vec<u8> {
    let numbers = [
        row.state,
        row.ruleset,
        row.direction,
        row.flow_hash,
        row.network_offset,
        row.payload_offset,
        row.ether_type,
        row.protocol,
        row.redirect,
        row.failure,
    ];
    let wide = [row.slots, row.generation].into_iter().flat_map(u64::to_ne_bytes);
    wide.chain(numbers.into_iter().flat_map(u32::to_ne_bytes)).collect()
}
