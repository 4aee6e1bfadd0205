//! Label selectors as Kubernetes means them.

use std::collections::BTreeMap;

use super::decode::{Field, Map};
use super::metadata::{is_label_key, label_value, read_labels};

type Labels = BTreeMap<String, String>;

/// A label selector. An empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    labels: Labels,
    expressions: Vec<Expression>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Expression {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl LabelSelector {
    /// Whether an object with these labels is selected. All conditions must hold; `NotIn` holds for what lacks
    /// the key.
    pub fn matches(&self, labels: &Labels) -> bool {
        let equal = self.labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        equal
            && self.expressions.iter().all(|expression| {
                let value = labels.get(&expression.key);
                match expression.operator {
                    Operator::In => value.is_some_and(|value| expression.values.contains(value)),
                    Operator::NotIn => value.is_none_or(|value| !expression.values.contains(value)),
                    Operator::Exists => value.is_some(),
                    Operator::DoesNotExist => value.is_none(),
                }
            })
    }
}

/// What a policy applies to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedTo {
    pods: Option<LabelSelector>,
    namespaces: Option<LabelSelector>,
}

impl AppliedTo {
    /// Whether a pod is selected: by its labels in all namespaces, by its namespace's labels, or by both; by
    /// neither, nothing is.
    pub fn selects(&self, namespace: &Labels, pod: &Labels) -> bool {
        let pods = self.pods.as_ref().map(|selector| selector.matches(pod));
        let namespaces = self.namespaces.as_ref().map(|selector| selector.matches(namespace));
        match (pods, namespaces) {
            (None, None) => false,
            (pods, namespaces) => pods.unwrap_or(true) && namespaces.unwrap_or(true),
        }
    }
}

pub(super) fn read_applied_to(spec: &Map) -> Option<AppliedTo> {
    let fields = spec.required("appliedTo")?.map()?;
    let applied_to = AppliedTo {
        pods: fields.get("podSelector").and_then(|field| read(&field)),
        namespaces: fields.get("namespaceSelector").and_then(|field| read(&field)),
    };
    fields.finish();
    Some(applied_to)
}

fn read(field: &Field) -> Option<LabelSelector> {
    let fields = field.map()?;
    let selector = LabelSelector {
        labels: fields.get("matchLabels").map(|labels| read_labels(&labels)).unwrap_or_default(),
        expressions: fields
            .get("matchExpressions")
            .map(|list| list.list().iter().filter_map(read_expression).collect())
            .unwrap_or_default(),
    };
    fields.finish();
    Some(selector)
}

fn read_expression(field: &Field) -> Option<Expression> {
    let fields = field.map()?;
    let (key, operator, values) = (fields.required("key"), fields.required("operator"), fields.get("values"));
    fields.finish();
    let key = key?.parse(|text| is_label_key(text).then(|| text.to_owned()), "a label key")?;
    let operator = operator?.choice(&[
        ("In", Operator::In),
        ("NotIn", Operator::NotIn),
        ("Exists", Operator::Exists),
        ("DoesNotExist", Operator::DoesNotExist),
    ])?;
    let values: Vec<String> =
        values.map(|list| list.list().iter().filter_map(label_value).collect()).unwrap_or_default();
    let wants = matches!(operator, Operator::In | Operator::NotIn);
    if wants == values.is_empty() {
        fields.contradiction(if wants {
            "In and NotIn need values"
        } else {
            "Exists and DoesNotExist take no values"
        });
        return None;
    }
    Some(Expression { key, operator, values })
}
