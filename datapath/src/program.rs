//! The BPF object. In: the object built into the library. Out: loaded programs, with maps that are pinned or
//! adopted from their pins.

use std::borrow::Cow;

use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use podwire_core::abi::{ABI_VERSION, layout};

use crate::error::{Context, Error, ErrorKind};
use crate::links;
use crate::maps::{self, Maps};
use crate::pins::Pins;

/// Names of the programs.
pub(crate) const FROM_POD: &str = "from_pod";
pub(crate) const TO_POD: &str = "to_pod";
pub(crate) const MIRROR: &str = "mirror";
pub(crate) const SEGMENT: &str = "segment";
pub(crate) const RETURNED: &str = "returned";
pub(crate) const FROM_UPLINK: &str = "from_uplink";
pub(crate) const TO_UPLINK: &str = "to_uplink";

pub(crate) const FROM_OVERLAY: &str = "from_overlay";
pub(crate) const TO_OVERLAY: &str = "to_overlay";

/// What the kernel's own stack drops.
pub(crate) const KERNEL_DROPS: &str = "kernel_drops";

/// Programs that others end in, in the order of map `STAGES`.
const STAGES: [&str; 3] = ["leave", "deliver", "answer"];

/// All of them.
pub(crate) const NAMES: [&str; 12] = [
    FROM_POD,
    TO_POD,
    MIRROR,
    SEGMENT,
    RETURNED,
    FROM_UPLINK,
    TO_UPLINK,
    FROM_OVERLAY,
    TO_OVERLAY,
    STAGES[0],
    STAGES[1],
    STAGES[2],
];

static OBJECT: &[u8] = include_bytes_aligned!("../bpf/podwire.bpf.o");

/// Loads the programs. Maps that are pinned already keep their contents.
pub(crate) fn load(pins: &Pins) -> Result<(Ebpf, Maps), Error> {
    let paths: Vec<_> = maps::NAMES.iter().map(|name| (*name, pins.map(name))).collect();
    let mut loader = EbpfLoader::new();
    for (name, path) in &paths {
        loader.map_pin_path(name, path.as_path());
    }
    let mut bpf = loader.load(&object()?).context(|| "loading the BPF object".into())?;
    let mut maps = Maps::take(&mut bpf)?;
    let config = maps.config.get(0)?;
    let written = config.generation != 0;
    if written && (config.abi_version != ABI_VERSION || config.layout_hash != layout::HASH) {
        let what = format!(
            "the pinned maps have layout {}/{:08x}, this podwire has {ABI_VERSION}/{:08x}",
            config.abi_version,
            config.layout_hash,
            layout::HASH
        );
        return Err(Error::new(ErrorKind::ForeignState, what));
    }
    for name in NAMES {
        links::classifier(&mut bpf, name)?.load().context(|| format!("loading program {name}"))?;
    }
    load_optional(&mut bpf);
    // Replaced in place: a packet gets the old program or the new one.
    for (index, name) in (0..).zip(STAGES) {
        let program = links::classifier(&mut bpf, name)?;
        let descriptor = program.fd().context(|| format!("program {name}"))?;
        maps.stages.set(index, descriptor, 0).context(|| format!("entering program {name}"))?;
    }
    Ok((bpf, maps))
}

/// A kernel that refuses this one only says less of a traced packet.
fn load_optional(bpf: &mut Ebpf) {
    let Some(Ok(program)) = bpf.program_mut(KERNEL_DROPS).map(<&mut RawTracePoint>::try_from) else {
        return;
    };
    if let Err(error) = program.load() {
        tracing::info!(%error, "traces do not tell what the kernel's own stack drops");
    }
}

/// The object that is built in; tests name another one, built from the sources they test.
fn object() -> Result<Cow<'static, [u8]>, Error> {
    match std::env::var_os("PODWIRE_BPF_OBJECT") {
        Some(path) => {
            let bytes = std::fs::read(&path).context(|| format!("reading {}", path.to_string_lossy()))?;
            Ok(Cow::Owned(bytes))
        }
        None => Ok(Cow::Borrowed(OBJECT)),
    }
}
