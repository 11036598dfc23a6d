data "spillway_slot" "audit" {
  slot_name = "audit"
}

output "retained" {
  value = data.spillway_slot.audit.retained_bytes
}
