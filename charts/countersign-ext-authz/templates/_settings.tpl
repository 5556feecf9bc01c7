{{/*
Renders settings as TOML. The function toToml cannot be used: Helm passes numbers as floats, and toToml writes the integer
2592000 as 2.592e+06, which is not valid for an integer setting. JSON strings, booleans and lists are valid TOML.
*/}}
{{- define "countersign-ext-authz.settings" -}}
{{- range $table, $keys := . }}
[{{ $table }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ printf "%.0f" $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{ end }}
{{- end }}
