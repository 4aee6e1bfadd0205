//! The XDP program in front of the workers. In: an interface and what is wanted. Out: packets at the sockets of
//! its queues, while the workers live.

use std::borrow::Cow;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aya::maps::{Array, DevMap, HashMap, Map, MapData, XskMap};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::XdpLink;
use aya::programs::{ProgramError, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use podwire_core::xsk::{Action, ConfigRow, IdKey, IdKind, Role};

use super::heart::{Heart, Rows};
use super::options::Attached;
use super::port::Port;
use crate::collect::Wanted;
use crate::error::{Context, Error, ErrorKind};
use crate::maps::Row;

static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/xsk.bpf.o");
const NAME: &str = "to_worker";
/// Buffers that one packet may take: as many as the kernel's own limit for pieces of a packet (`MAX_SKB_FRAGS` + 1).
const PIECES: u32 = 18;

/// What the program does with packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Tunnel packets are the workers', the rest is the stack's.
    Collect(Wanted),
    /// All packets are the workers'; without one they leave by the device of this index, or are dropped.
    Inspect {
        /// The device, and whether packets leave by it uninspected.
        out: u32,
        action: Action,
    },
}

/// The loaded program.
pub struct Program {
    bpf: Ebpf,
    sockets: XskMap<MapData>,
    rows: Arc<Rows>,
    interface: String,
    attached: Option<Attached>,
    folder: Option<PathBuf>,
}

impl Program {
    /// Loads the program. With a folder of a bpffs, what is there is adopted, and what is attached stays when the
    /// process ends.
    pub(super) fn load(interface: &str, folder: Option<&Path>) -> Result<Self, Error> {
        let mut loader = EbpfLoader::new();
        let paths: Vec<PathBuf> = match folder {
            Some(folder) => {
                fs::create_dir_all(folder).context(|| format!("creating {}", folder.display()))?;
                MAPS.iter().map(|name| folder.join(name)).collect()
            }
            None => Vec::new(),
        };
        for (name, path) in MAPS.iter().zip(&paths) {
            loader.map_pin_path(*name, path.as_path());
        }
        let mut bpf = loader.load(&object()?).context(|| "loading the XDP program".into())?;
        // Before any map is taken out: the program refers to them by descriptor.
        xdp(&mut bpf)?.load().context(|| "loading the XDP program".into())?;
        let sockets =
            XskMap::try_from(take(&mut bpf, "XSK_SOCKETS")?).context(|| "map XSK_SOCKETS".into())?;
        let rows = match take(&mut bpf, "XSK_QUEUES")? {
            Map::Array(data) => Rows::map(data.fd())?,
            _ => return Err(Error::new(ErrorKind::ForeignState, "map XSK_QUEUES is no array")),
        };
        let interface = interface.to_owned();
        Ok(Self { bpf, sockets, rows, interface, attached: None, folder: folder.map(Path::to_owned) })
    }

    /// Says what to do, before any packet is looked at.
    pub(super) fn configure(&mut self, work: &Work, room: u32, patience: Duration) -> Result<(), Error> {
        let mut row = ConfigRow {
            patience: patience.max(Duration::from_millis(5)).as_nanos() as u64,
            role: Role::Collector as u32,
            action: Action::Pass as u32,
            room,
            formats: 0,
            by_id: 0,
            buffers: PIECES,
            vxlan_ports: [0; ConfigRow::PORTS],
            geneve_ports: [0; ConfigRow::PORTS],
        };
        match work {
            Work::Collect(wanted) => {
                row.vxlan_ports = ports("VXLAN", &wanted.vxlan_ports)?;
                row.geneve_ports = ports("GENEVE", &wanted.geneve_ports)?;
                row.formats = if wanted.gre { ConfigRow::FORMAT_GRE } else { 0 }
                    | if wanted.erspan { ConfigRow::FORMAT_ERSPAN } else { 0 };
                row.by_id = self.ask_for(wanted)?;
            }
            Work::Inspect { out, action } => {
                row.role = Role::Inspector as u32;
                row.action = *action as u32;
                let map = take(&mut self.bpf, "XSK_BYPASS")?;
                let mut bypass = DevMap::try_from(map).context(|| "map XSK_BYPASS".into())?;
                bypass.set(0, *out, None, 0).context(|| "writing map XSK_BYPASS".into())?;
            }
        }
        let map = take(&mut self.bpf, "XSK_CONFIG")?;
        let mut config: Array<_, Row<ConfigRow>> =
            Array::try_from(map).context(|| "map XSK_CONFIG".into())?;
        config.set(0, Row(row), 0).context(|| "writing map XSK_CONFIG".into())
    }

    /// Enters the identifiers; returns the kinds that there are any of.
    fn ask_for(&mut self, wanted: &Wanted) -> Result<u32, Error> {
        let keys = wanted
            .vnis
            .iter()
            .map(|vni| (IdKind::Vni, *vni))
            .chain(wanted.keys.iter().map(|key| (IdKind::Key, *key)))
            .chain(wanted.sessions.iter().map(|session| (IdKind::Session, u32::from(*session))));
        let map = take(&mut self.bpf, "XSK_IDS")?;
        let mut ids: HashMap<_, Row<IdKey>, u32> = HashMap::try_from(map).context(|| "map XSK_IDS".into())?;
        let mut kinds = 0;
        for (kind, id) in keys {
            ids.insert(Row(IdKey { kind: kind as u32, id }), 1, 0).map_err(|error| {
                let what = format!("more than {} identifiers", podwire_core::xsk::IDS);
                Error::caused(ErrorKind::TableFull, what, error)
            })?;
            kinds |= kind.bit();
        }
        Ok(kinds)
    }

    /// The row of a queue.
    pub(super) fn heart(&self, queue: u32) -> Result<Heart, Error> {
        self.rows.heart(queue)
    }

    /// Makes a socket its queue's.
    pub(super) fn enter(&mut self, queue: u32, port: &Port) -> Result<(), Error> {
        self.sockets
            .set(queue, port.as_raw_fd(), 0)
            .context(|| format!("entering the socket of queue {queue} of {}", self.interface))
    }

    /// Attaches the program: in the driver, else in the stack.
    pub(super) fn attach(&mut self) -> Result<Attached, Error> {
        let interface = self.interface.clone();
        let path = self.folder.as_ref().map(|folder| folder.join("link"));
        if let Some(path) = &path
            && self.adopt(path)?
        {
            return Ok(*self.attached.insert(Attached::Native));
        }
        let program = xdp(&mut self.bpf)?;
        let mut attached = Attached::Native;
        let link = program.attach(&interface, XdpMode::Driver).or_else(|error| {
            if is_busy(&error) {
                return Err(error);
            }
            attached = Attached::Generic;
            program.attach(&interface, XdpMode::Skb)
        });
        let link = link.map_err(|error| refused(error, &interface))?;
        if let Some(path) = path {
            let link: FdLink = program
                .take_link(link)
                .context(|| format!("the XDP link of {interface}"))?
                .try_into()
                .context(|| format!("the XDP link of {interface}"))?;
            link.pin(&path).context(|| format!("pinning {}", path.display()))?;
        }
        Ok(*self.attached.insert(attached))
    }

    /// Puts this program behind an earlier process's link; `false` when there is none that still has its interface.
    fn adopt(&mut self, path: &Path) -> Result<bool, Error> {
        let Ok(old) = PinnedLink::from_pin(path) else {
            return Ok(false);
        };
        let link = XdpLink::try_from(FdLink::from(old)).context(|| format!("{}", path.display()))?;
        let program = xdp(&mut self.bpf)?;
        match program.attach_to_link(link) {
            Ok(id) => {
                // The pin keeps the link; the handle may go.
                drop(program.take_link(id).context(|| format!("{}", path.display()))?);
                Ok(true)
            }
            Err(_) => {
                // Its interface is gone.
                fs::remove_file(path).context(|| format!("removing {}", path.display()))?;
                Ok(false)
            }
        }
    }

    /// How it is attached.
    pub fn attached(&self) -> Option<Attached> {
        self.attached
    }

    /// Takes everything down, pinned or not.
    pub(super) fn remove(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

const MAPS: [&str; 6] = ["XSK_CONFIG", "XSK_QUEUES", "XSK_SOCKETS", "XSK_IDS", "XSK_FRAGMENTS", "XSK_BYPASS"];

/// The object that is built in; tests name another one, built from the sources they test.
fn object() -> Result<Cow<'static, [u8]>, Error> {
    let Some(path) = std::env::var_os("PODWIRE_BPF_OBJECT").map(PathBuf::from) else {
        return Ok(Cow::Borrowed(OBJECT));
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy().replacen("podwire.", "xsk.", 1);
    let path = path.with_file_name(name);
    fs::read(&path).map(Cow::Owned).context(|| format!("reading {}", path.display()))
}

fn take(bpf: &mut Ebpf, name: &str) -> Result<Map, Error> {
    bpf.take_map(name)
        .ok_or_else(|| Error::new(ErrorKind::ForeignState, format!("the BPF object has no map {name}")))
}

fn xdp(bpf: &mut Ebpf) -> Result<&mut Xdp, Error> {
    let program = bpf.program_mut(NAME).ok_or_else(|| {
        Error::new(ErrorKind::ForeignState, format!("the BPF object has no program {NAME}"))
    })?;
    program.try_into().context(|| format!("program {NAME}"))
}

fn ports(format: &str, ports: &[u16]) -> Result<[u16; ConfigRow::PORTS], Error> {
    let mut row = [0; ConfigRow::PORTS];
    if ports.len() > row.len() {
        let what = format!("{} ports of {format}: at most {} at once", ports.len(), row.len());
        return Err(Error::new(ErrorKind::TableFull, what));
    }
    row[..ports.len()].copy_from_slice(ports);
    Ok(row)
}

fn number(error: &ProgramError) -> Option<i32> {
    match error {
        ProgramError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    }
}

fn is_busy(error: &ProgramError) -> bool {
    number(error) == Some(libc::EBUSY)
}

fn refused(error: ProgramError, interface: &str) -> Error {
    match number(&error) {
        Some(libc::EBUSY) => Error::caused(
            ErrorKind::Busy,
            format!("{interface} has an XDP program of another owner, which stays (`bpftool net` names it)"),
            error,
        ),
        Some(libc::EOPNOTSUPP | libc::EINVAL) => {
            Error::caused(ErrorKind::Unsupported, format!("{interface} takes no XDP program"), error)
        }
        _ => Err::<(), _>(error)
            .context(|| format!("attaching the XDP program to {interface}"))
            .err()
            .unwrap_or_else(|| Error::new(ErrorKind::Kernel, "attaching the XDP program")),
    }
}
