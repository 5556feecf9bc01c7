{{/*
Settings as TOML, table by table. Not toToml: numbers come here through JSON as floats, and it would write the
integer 2592000 as 2.592e+06, which no setting accepts. JSON's strings, booleans and lists are TOML as they are.
*/}}
{{- define "countersign-ext-authz.settings" -}}
{{- range $table, $keys := . }}
[{{ $table }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ printf "%.0f" $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{ end }}
{{- end }}
