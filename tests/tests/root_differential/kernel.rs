//! The programs in the kernel, loaded by libbpf and run by `BPF_PROG_TEST_RUN` inside the node's namespace.

use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result, anyhow};
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use podwire_datapath::core::abi::{CopyRow, Direction};
use podwire_harness::NetNs;

/// Size and offsets of `struct __sk_buff` (linux/bpf.h).
const CONTEXT: usize = 192;
const MARK: usize = 8;
const IFINDEX: usize = 40;

/// What a run left.
pub struct Ran {
    pub code: u32,
    pub data: Vec<u8>,
}

type Work = Box<dyn FnOnce(&Object) + Send>;

/// The second load of the object.
pub struct Kernel {
    work: Sender<Work>,
    mirror_ifindex: u32,
}

impl Kernel {
    pub fn open(node: &NetNs, maps: &Path) -> Result<Self> {
        let shown: serde_json::Value =
            serde_json::from_str(&node.ip(&["-j", "link", "show", "dev", "pw-mirror"])?)?;
        let mirror_ifindex = shown[0]["ifindex"].as_u64().context("an index")? as u32;
        let bytes = match std::env::var_os("PODWIRE_BPF_OBJECT") {
            Some(path) => std::fs::read(path)?,
            None => std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../datapath/bpf/podwire.bpf.o"))?,
        };
        let maps = maps.to_owned();
        let (work, todo) = channel::<Work>();
        let (opened, wait) = channel();
        node.enter_later(move || {
            // Per-CPU rows are seeded on, and counted by, one CPU.
            let mut cpus = CpuSet::new();
            cpus.set(0)?;
            sched_setaffinity(Pid::from_raw(0), &cpus)?;
            let object = load(&bytes, &maps);
            match object {
                Ok(object) => {
                    let _ = opened.send(Ok(()));
                    while let Ok(work) = todo.recv() {
                        work(&object);
                    }
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            }
            Ok(())
        })?;
        wait.recv().context("the thread died")??;
        Ok(Self { work, mirror_ifindex })
    }

    fn ask<T: Send + 'static>(&self, work: impl FnOnce(&Object) -> Result<T> + Send + 'static) -> Result<T> {
        let (answer, wait) = channel();
        self.work
            .send(Box::new(move |object| {
                let _ = answer.send(work(object));
            }))
            .map_err(|_| anyhow!("the thread is gone"))?;
        wait.recv().context("the thread died")?
    }

    /// Slot of the endpoint behind an interface.
    pub fn slot(&self, ifindex: u32) -> Result<u32> {
        self.ask(move |object| {
            let map = object.maps().find(|map| map.name() == "INTERFACES").context("INTERFACES")?;
            let value = map.lookup(&ifindex.to_ne_bytes(), MapFlags::ANY)?.context("a row")?;
            let stored = u32::from_ne_bytes(value.as_slice().try_into()?);
            stored.checked_sub(1).context("the interface has an endpoint")
        })
    }

    /// Runs a pod's hook.
    pub fn pod(&self, direction: Direction, ifindex: u32, mark: u32, frame: &[u8]) -> Result<Ran> {
        let frame = frame.to_vec();
        let name = match direction {
            Direction::Egress => "from_pod",
            Direction::Ingress => "to_pod",
        };
        self.ask(move |object| run(object, name, ifindex, mark, &frame))
    }

    /// Runs the mirror program as if the pod's hook had handed the frame over.
    pub fn mirror(&self, copy: &CopyRow, frame: &[u8]) -> Result<Ran> {
        let (frame, row, ifindex) = (frame.to_vec(), bytes(copy), self.mirror_ifindex);
        self.ask(move |object| {
            let map = object.maps().find(|map| map.name() == "COPY").context("COPY")?;
            let cpus = libbpf_rs::num_possible_cpus()?;
            map.update_percpu(&0u32.to_ne_bytes(), &vec![row; cpus], MapFlags::ANY)?;
            run(object, "mirror", ifindex, 0, &frame)
        })
    }
}

fn load(bytes: &[u8], maps: &Path) -> Result<Object> {
    let mut open = ObjectBuilder::default().open_memory(bytes)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let path = maps.join(&name);
        if path.exists() {
            map.reuse_pinned_map(&path).with_context(|| format!("reusing map {name}"))?;
        }
    }
    Ok(open.load()?)
}

fn run(object: &Object, name: &str, ifindex: u32, mark: u32, frame: &[u8]) -> Result<Ran> {
    let program = object
        .progs_mut()
        .find(|program| program.name() == name)
        .with_context(|| format!("program {name}"))?;
    let mut context = [0; CONTEXT];
    context[MARK..MARK + 4].copy_from_slice(&mark.to_ne_bytes());
    context[IFINDEX..IFINDEX + 4].copy_from_slice(&ifindex.to_ne_bytes());
    let mut out = vec![0; frame.len() + 256];
    let input = ProgramInput {
        context_in: Some(&mut context),
        data_in: Some(frame),
        data_out: Some(&mut out),
        ..ProgramInput::default()
    };
    let output = program.test_run(input)?;
    let data = output.data.context("data")?.to_vec();
    Ok(Ran { code: output.return_value, data })
}

/// The row as the map holds it.
fn bytes(row: &CopyRow) -> Vec<u8> {
    let words = [
        row.state,
        row.ruleset,
        row.direction,
        row.flow_hash,
        row.network_offset,
        row.payload_offset,
        row.ether_type,
        row.protocol,
    ];
    let long = [row.sessions, row.generation];
    long.iter()
        .flat_map(|word| word.to_ne_bytes())
        .chain(words.iter().flat_map(|word| word.to_ne_bytes()))
        .collect()
}
