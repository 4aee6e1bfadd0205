//! From the command's words to a manifest. In: [`Wanted`]. Out: a Traceflow as JSON, or wrong use, told with the
//! words of the command.

use podwire_datapath::object::{self, API_VERSION};
use serde_json::{Map, Value, json};

use super::end::{End, trace_name};
use super::{Connection, Wanted};
use crate::failure::Failure;

/// What a destination's name is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A pod's.
    Pod,
    /// A Service's.
    Service,
}

impl Wanted {
    /// The manifest, by a new name.
    ///
    /// # Errors
    /// Wrong use: what contradicts itself whatever the cluster is.
    pub fn manifest(&self) -> Result<Value, Failure> {
        let name = trace_name(self.source.as_ref(), self.destination.as_ref());
        let manifest = json!({
            "apiVersion": API_VERSION,
            "kind": "Traceflow",
            "metadata": {"name": name},
            "spec": self.spec()?,
        });
        object::parse("command line", &manifest.to_string()).map_err(|errors| {
            let line = |error: &object::ObjectError| {
                let field = error.field().strip_prefix("spec.").unwrap_or(error.field());
                let field = if field == "spec" { String::new() } else { format!("{field}: ") };
                let allowed = error.allowed().map_or_else(String::new, |words| format!("; allowed: {words}"));
                format!("{field}{}{allowed}", error.problem())
            };
            Failure::Usage(errors.iter().map(line).collect())
        })?;
        Ok(manifest)
    }

    fn spec(&self) -> Result<Value, Failure> {
        if let (Some(End::Ip(ip)), false) = (&self.source, self.live_traffic) {
            return Err(usage(&format!(
                "--source {ip}: an address is for --live-traffic; a packet that is made starts at a pod"
            )));
        }
        let mut spec = Map::new();
        let ends = [("source", &self.source), ("destination", &self.destination)];
        for (field, end) in ends {
            if let Some(end) = end {
                spec.insert(field.into(), end_json(end, Taken::Pod));
            }
        }
        let packet = self.packet()?;
        if packet.as_object().is_some_and(|packet| !packet.is_empty()) {
            spec.insert("packet".into(), packet);
        }
        spec.insert("timeout".into(), json!(self.timeout.as_secs()));
        let capture = self.capture.as_ref().map(|_| json!(self.capture_bytes));
        let yes = |said: bool| said.then_some(Value::Bool(true));
        for (field, value) in [
            ("liveTraffic", yes(self.live_traffic)),
            ("droppedOnly", yes(self.dropped_only)),
            ("deliver", yes(self.deliver)),
            ("replies", yes(self.replies)),
            ("count", (self.count > 1).then(|| json!(self.count))),
            ("sampling", (self.sampling > 1).then(|| json!(self.sampling))),
            ("connection", (self.connection == Connection::New).then(|| json!("new"))),
            ("capture", capture),
        ] {
            if let Some(value) = value {
                spec.insert(field.into(), value);
            }
        }
        Ok(Value::Object(spec))
    }

    fn packet(&self) -> Result<Value, Failure> {
        let mut flow = self.flow.clone();
        match (self.ttl, flow.ttl) {
            (Some(one), Some(other)) if one != other => {
                return Err(usage(&format!("--ttl {one} and nw_ttl={other} of --flow are different")));
            }
            (ttl, _) => flow.ttl = flow.ttl.or(ttl),
        }
        if flow.v6.is_none() {
            // A TTL stands in the header of a family, which an address says as well.
            let ends = [&self.source, &self.destination];
            let v6 = ends.iter().any(|end| matches!(end, Some(End::Ip(ip)) if ip.is_ipv6()));
            flow.v6 = v6.then_some(true);
        }
        let mut packet = flow.packet();
        if let (Some(length), Some(fields)) = (self.payload_length, packet.as_object_mut()) {
            fields.insert("payloadLength".into(), json!(length));
        }
        Ok(packet)
    }
}

/// Takes the destination's name for something else.
pub fn take_destination_for(manifest: &mut Value, end: &End, taken: Taken) {
    manifest["spec"]["destination"] = end_json(end, taken);
}

fn end_json(end: &End, taken: Taken) -> Value {
    match (end, taken) {
        (End::Ip(ip), _) => json!({"ip": ip}),
        (End::Named { namespace, name }, Taken::Pod) => json!({"namespace": namespace, "pod": name}),
        (End::Named { namespace, name }, Taken::Service) => json!({"namespace": namespace, "service": name}),
    }
}

fn usage(line: &str) -> Failure {
    Failure::Usage(vec![line.to_owned()])
}
