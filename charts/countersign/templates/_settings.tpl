{{/*
Settings as TOML, table by table. Not toToml: numbers come here through JSON as floats, and it would write the
integer 2592000 as 2.592e+06, which no setting accepts. JSON's strings, booleans and lists are TOML as they are.
*/}}
{{- define "countersign.settings" -}}
{{- range $table, $keys := . }}
{{ include "countersign.table" (list $table $keys) }}
{{ end }}
{{- end }}

{{/* A table, given its name and content, and then the tables in it, such as humans.issuers.corp. */}}
{{- define "countersign.table" -}}
{{- $table := index . 0 -}}
[{{ $table }}]
{{- range $key, $value := index . 1 }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ printf "%.0f" $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end }}
{{- range $key, $value := index . 1 }}
{{- if kindIs "map" $value }}
{{ include "countersign.table" (list (printf "%s.%s" $table $key) $value) }}
{{- end }}
{{- end }}
{{- end }}
