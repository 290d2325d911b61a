//! Every property over its seeds, its saved cases and a fixed number of generated inputs.
//!
//! Each test also checks how many generated inputs got past the parser, so that a property that no input reaches fails.

mod harness;

use harness::run;

#[test]
fn a_report_is_read_as_it_was_written_or_refused() {
    run("allocator", 3_000, properties::allocator, 300);
}

#[test]
fn no_cgroup_makes_up_an_owner() {
    run("cgroup", 1_500, properties::cgroup, 500);
}

#[test]
fn no_process_chooses_more_than_its_name() {
    run("process", 3_000, properties::process, 1_000);
}

#[test]
fn no_passwd_line_names_another_user() {
    run("passwd", 3_000, properties::passwd, 1_000);
}

#[test]
fn a_list_of_fields_is_taken_whole_or_refused_with_a_line() {
    run("collectors", 2_000, properties::collectors, 500);
}

#[test]
fn a_configuration_is_good_or_the_error_says_why_not() {
    run("config", 300, properties::config, 100);
}

#[test]
fn every_request_is_answered_or_the_connection_closed() {
    run("http", 800, properties::http, 150);
}

#[test]
fn no_name_becomes_markup() {
    run("names", 200, properties::page, 100);
}

#[test]
fn an_id_is_shown_under_its_only_name() {
    run("pods", 2_000, properties::pods, 500);
}

#[test]
fn an_amount_of_memory_is_read_as_kubernetes_means_it_or_refused() {
    run("quantity", 5_000, properties::quantity, 1_000);
}

#[test]
fn allocations_and_devices_are_those_of_the_answer() {
    run("pod_resources", 3_000, properties::pod_resources, 300);
}

#[test]
fn a_container_has_the_gpu_of_a_claim_only_if_all_say_so() {
    run("claims", 2_000, properties::claims, 100);
}

#[test]
fn any_names_come_back_as_they_were() {
    run("names", 250, properties::exposition, 150);
}

#[test]
fn a_selection_shows_exactly_the_families_that_it_names() {
    run("selection", 500, properties::selection, 120);
}

#[test]
fn a_web_config_is_taken_whole_or_refused_in_a_line() {
    run("web_config", 1_000, properties::web_config, 80);
}

#[test]
fn a_name_and_a_password_come_back_as_they_were() {
    run("credentials", 1_000, properties::credentials, 30);
}

#[test]
fn a_scenario_is_refused_by_key_or_makes_a_machine() {
    run("scenario", 1_000, properties::scenario, 80);
}
