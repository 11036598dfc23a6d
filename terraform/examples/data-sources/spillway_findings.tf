check "nothing_stands_still" {
  data "spillway_findings" "bad" {
    severity = "bad"
  }

  assert {
    condition     = length(data.spillway_findings.bad.findings) == 0
    error_message = join("; ", data.spillway_findings.bad.findings[*].title)
  }
}
