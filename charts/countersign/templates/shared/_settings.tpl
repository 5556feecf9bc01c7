{{/*
Renders settings as TOML. The function toToml cannot be used: Helm passes numbers as floats, and toToml writes the integer
2592000 as 2.592e+06, which is not valid for an integer setting. JSON strings, booleans and lists are valid TOML.
The folder of this file belongs to both charts: the chart countersign-ext-authz has a link to it.
*/}}
{{- define "countersign.settings" -}}
{{- range $table, $keys := . }}
{{ include "countersign.table" (list $table $keys) }}
{{ end }}
{{- end }}

{{/* Fails if the settings or the environment contain what the chart sets itself: (list $ REASONS). REASONS has what to do instead, by
`TABLE` or `TABLE.KEY`. */}}
{{- define "countersign.checkSettings" -}}
{{- $settings := (index . 0).Values.settings }}
{{- $variables := (index . 0).Values.extraEnv }}
{{- range $name, $instead := index . 1 }}
{{- $own := printf "^COUNTERSIGN_%s(_FILE|__.*)?$" ($name | replace "." "__" | upper) }}
{{- range $variables }}
{{- if regexMatch $own .name }}
{{- fail (printf "extraEnv contains %s, which would replace what the chart sets: %s" .name $instead) }}
{{- end }}
{{- end }}
{{- $path := splitList "." $name }}
{{- $table := get $settings (first $path) | default dict }}
{{- if or (and (eq (len $path) 1) (hasKey $settings $name)) (and (eq (len $path) 2) (hasKey $table (last $path))) }}
{{- fail (printf "settings.%s is not allowed, because the chart sets it: %s" $name $instead) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Renders a table (name, content) and its subtables, such as humans.issuers.corp. */}}
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
