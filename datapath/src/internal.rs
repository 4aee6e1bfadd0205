//! Internal ports: devices that podwire makes for tools. In: names. Out: a veth pair per name.
//!
//! ```text
//!  tool ◄─► NAME ═══ pwi… ◄─► podwire
//! ```
//!
//! The tool's end has the name that the user gave. The near end has no segmentation and no checksum offload, so
//! that what crosses to the tool is cut to size and has whole checksums, whatever the pods' offloads are; the
//! MTU is the largest of the pods' interfaces. A tool may take its end into its own network namespace. The near
//! end's alias says whose it is; nothing without it is ever touched.

use std::collections::{BTreeSet, HashMap};

use crate::desired::{Desired, Target};
use crate::error::Error;
use crate::netdev::{Link, Netdev};
use crate::plan::name_hash;

/// What the near end's alias begins with.
const ALIAS: &str = "podwire internal port ";
/// MTU of a port without a pod.
const DEFAULT_MTU: u32 = 1500;

/// Name of the near end.
pub(crate) fn near_end(name: &str) -> String {
    let hash = name_hash(name);
    format!("pwi{:08x}", (hash >> 32) as u32 ^ hash as u32)
}

/// Names of the internal ports that are wanted.
pub(crate) fn wanted(desired: &Desired) -> BTreeSet<String> {
    let mirrors = desired.mirrors.iter().map(|mirror| &mirror.target);
    let redirects = desired.redirects.iter().flat_map(|redirect| [&redirect.target, &redirect.return_port]);
    mirrors
        .chain(redirects)
        .filter_map(|target| match target {
            Target::Internal { name } => Some(name.clone()),
            Target::Device { .. } | Target::Tunnel { .. } | Target::Reader { .. } => None,
        })
        .collect()
}

/// Whether a device's alias says that it is the near end of a port.
pub(crate) fn is_near_end(alias: &str) -> bool {
    alias.starts_with(ALIAS)
}

/// Makes what is missing; `true` when something was changed. A port that cannot be had is its users' problem.
pub(crate) fn ensure(netdev: &Netdev, desired: &Desired, links: &HashMap<String, Link>) -> bool {
    let mtu = desired
        .endpoints
        .iter()
        .filter_map(|endpoint| links.get(&endpoint.interface))
        .map(|link| link.mtu)
        .fold(DEFAULT_MTU, u32::max);
    let mut changed = false;
    for name in wanted(desired) {
        let near = near_end(&name);
        let result = match links.get(&near) {
            Some(link) if link.up && link.mtu >= mtu => continue,
            Some(_) => netdev.grow_pair(&near, links.get(&name).map(|_| name.as_str()), mtu),
            None if links.contains_key(&name) => {
                tracing::warn!(port = %name, "a device of this name exists, and podwire did not make it");
                continue;
            }
            None => netdev.create_port(&name, &near, &format!("{ALIAS}{name}"), mtu),
        };
        changed = true;
        if let Err(error) = result {
            tracing::warn!(port = %name, %error, "the internal port could not be made");
        }
    }
    changed
}

/// Names of the ports that an agent made.
pub(crate) fn existing(links: &HashMap<String, Link>) -> BTreeSet<String> {
    links
        .iter()
        .filter_map(|(name, link)| {
            let port = link.alias.as_deref()?.strip_prefix(ALIAS)?;
            (*name == near_end(port)).then(|| port.to_owned())
        })
        .collect()
}

/// Removes a port, wherever the tool's end is.
pub(crate) fn remove(netdev: &Netdev, port: &str) -> Result<(), Error> {
    netdev.delete(&near_end(port))
}
