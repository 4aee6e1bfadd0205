//! What the kernel's own stack drops. In: the kernel's description of its types. Out: a program at the place where packets
//! are freed, for the time of traces; nothing, on a kernel that does not say enough.

use std::os::linux::fs::MetadataExt;

use aya::programs::RawTracePoint;
use aya::programs::raw_trace_point::RawTracePointLink;
use podwire_core::abi::KernelRow;

use super::Datapath;
use crate::btf::Btf;
use crate::error::{Context, Error};
use crate::maps::Table;
use crate::program::KERNEL_DROPS;

/// The program while it is attached.
pub(super) type Attached = RawTracePointLink;

const PREFIX: &str = "SKB_DROP_REASON_";

impl Datapath {
    /// Tells the program where the kernel has what it looks at.
    fn describe_kernel(&mut self) -> Result<(), Error> {
        let Some(btf) = Btf::of_kernel() else {
            tracing::info!("this kernel has no BTF: traces do not tell what its own stack drops");
            return Ok(());
        };
        let reasons = btf.names("skb_drop_reason").unwrap_or_default();
        let netns = std::fs::metadata("/proc/thread-self/ns/net").map(|about| about.st_ino()).unwrap_or(0);
        let own = ["TC_INGRESS", "TC_EGRESS"].map(|name| {
            let is_it = |(_, full): &(&u32, &String)| full.strip_prefix(PREFIX) == Some(name);
            reasons.iter().find(is_it).map_or(u32::MAX, |(number, _)| *number)
        });
        let row = row(&btf, netns as u32, own);
        if row.is_none_or(|row| row.usable == 0) {
            tracing::info!(
                "this kernel gives no reasons for drops: traces do not tell what its own stack drops"
            );
        }
        if let Some(row) = row {
            let mut table: Table<KernelRow> = Table::reopen(&self.pins, "KERNEL")?;
            table.set(0, row)?;
        }
        let short = |name: String| name.strip_prefix(PREFIX).map_or(name.clone(), str::to_owned);
        self.names.learn_reasons(reasons.into_iter().map(|(number, name)| (number, short(name))));
        Ok(())
    }

    /// Has the program at its place, or not.
    pub(super) fn attach_kernel_drops(&mut self, wanted: bool) -> Result<(), Error> {
        if !wanted {
            self.kernel_drops = None;
            return Ok(());
        }
        if self.kernel_drops.is_some() {
            return Ok(());
        }
        // Some megabytes to read: not before somebody traces.
        if !std::mem::replace(&mut self.kernel_is_described, true) {
            self.describe_kernel()?;
        }
        let Some(Ok(program)) = self.bpf.program_mut(KERNEL_DROPS).map(<&mut RawTracePoint>::try_from) else {
            return Ok(());
        };
        let attaching = || "attaching to tracepoint kfree_skb".to_owned();
        let link = program.attach("kfree_skb").context(attaching)?;
        self.kernel_drops = Some(program.take_link(link).context(attaching)?);
        Ok(())
    }
}

/// `None` when a field is not where it is looked for.
fn row(btf: &Btf, netns: u32, own: [u32; 2]) -> Option<KernelRow> {
    let skb = |field| btf.offset("sk_buff", field);
    Some(KernelRow {
        // A kernel without reasons has no such names.
        usable: u32::from(own[0] != u32::MAX),
        head: skb("head")?,
        network_header: skb("network_header")?,
        mark: skb("mark")?,
        len: skb("len")?,
        dev: skb("dev")?,
        ifindex: btf.offset("net_device", "ifindex")?,
        nd_net: btf.offset("net_device", "nd_net")?,
        inum: btf.offset("net", "ns")? + btf.offset("ns_common", "inum")?,
        netns,
        own,
    })
}
