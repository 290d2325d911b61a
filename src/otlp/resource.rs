//! The attributes of the resource: the exporter and its machine.

use opentelemetry_proto::tonic::resource::v1::Resource;

use super::encoding::attribute;
use super::error::Error;
use super::list;
use super::settings::Settings;

/// The variable that holds attributes.
const VARIABLE: &str = "OTEL_RESOURCE_ATTRIBUTES";
/// The attribute that names the service.
const SERVICE_NAME: &str = "service.name";

/// The resource. `simulated` marks values that are not measurements.
///
/// # Errors
/// When the variable is not a list of attributes.
pub(super) fn read(settings: &Settings, simulated: bool) -> Result<Resource, Error> {
    let mut known: Vec<(String, String)> =
        settings.resource.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let list = settings.resource_attributes.as_deref().unwrap_or_default();
    let mut given = list::read(list).map_err(|text| Error::Attributes { from: VARIABLE.to_owned(), text })?;
    given.extend(settings.service_name.iter().map(|name| (SERVICE_NAME.to_owned(), name.clone())));
    if simulated {
        given.push(("vram_exporter.simulated".to_owned(), "true".to_owned()));
    }
    for (name, value) in given {
        match known.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => known.push((name, value)),
        }
    }
    known.retain(|(_, value)| !value.is_empty());
    let attributes = known.iter().map(|(name, value)| attribute(name, value)).collect();
    Ok(Resource { attributes, ..Resource::default() })
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;

    use super::*;

    fn shown(settings: &Settings, simulated: bool) -> Vec<(String, String)> {
        let text = |value| match value {
            Some(Value::StringValue(text)) => text,
            other => panic!("{other:?}"),
        };
        let attributes = read(settings, simulated).unwrap().attributes;
        attributes.into_iter().map(|kv| (kv.key, text(kv.value.unwrap().value))).collect()
    }

    #[test]
    fn the_variables_override_and_extend_what_is_known() {
        let known = vec![(SERVICE_NAME, "vram-exporter".to_owned()), ("host.name", "gpu-1".to_owned())];
        let settings = Settings { resource: known, ..Settings::for_tests("http://127.0.0.1:1") };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let plain = [pair(SERVICE_NAME, "vram-exporter"), pair("host.name", "gpu-1")];
        assert_eq!(shown(&settings, false), plain);
        let settings = Settings {
            resource_attributes: Some("k8s.cluster.name=a%2Cb,host.name=other,service.name=x".to_owned()),
            service_name: Some("named".to_owned()),
            ..settings
        };
        let expected = [
            pair(SERVICE_NAME, "named"),
            pair("host.name", "other"),
            pair("k8s.cluster.name", "a,b"),
            pair("vram_exporter.simulated", "true"),
        ];
        assert_eq!(shown(&settings, true), expected);
        let settings = Settings { resource_attributes: Some("nonsense".to_owned()), ..settings };
        assert!(read(&settings, false).unwrap_err().to_string().contains(VARIABLE));
    }
}
