{{/* What the pods of the control plane and of its jobs have in common: names, the connection to the database, volumes. */}}

{{- define "countersign.publicUrl" -}}
{{- $port := ternary "" (printf ":%d" (int .Values.service.apiPort)) (eq (int .Values.service.apiPort) 443) -}}
{{- .Values.publicUrl | default (printf "https://%s%s" (include "countersign.serviceHost" .) $port) -}}
{{- end }}

{{- define "countersign.serviceHost" -}}
{{- printf "%s.%s.svc" (include "countersign.fullname" .) .Release.Namespace -}}
{{- end }}

{{/* The URL of the API inside the cluster. */}}
{{- define "countersign.serviceUrl" -}}
{{- printf "https://%s:%d" (include "countersign.serviceHost" .) (int .Values.service.apiPort) -}}
{{- end }}

{{/* The URL of the API for the pods of `helm test` and of the job of `apply`. */}}
{{- define "countersign.clientUrl" -}}
{{- if .Values.clientUrl -}}
{{- .Values.clientUrl -}}
{{- else -}}
{{- ternary (include "countersign.publicUrl" .) (include "countersign.serviceUrl" .) (eq .Values.tls.mode "terminated") -}}
{{- end -}}
{{- end }}

{{/* The host of publicUrl, without its port. */}}
{{- define "countersign.publicHost" -}}
{{- get (urlParse (include "countersign.publicUrl" .)) "hostname" -}}
{{- end }}

{{/* The path of publicUrl, such as /identity. Empty without a path. */}}
{{- define "countersign.publicPath" -}}
{{- get (urlParse (include "countersign.publicUrl" .)) "path" | trimSuffix "/" -}}
{{- end }}

{{/* The Secret with tls.crt and tls.key. */}}
{{- define "countersign.tlsSecretName" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "countersign.fullname" .)) -}}
{{- end }}

{{/* The Secret or ConfigMap with the CA of the certificate, for pods that connect to the control plane. Empty for a CA that the image
trusts. */}}
{{- define "countersign.clientCa" -}}
{{- $tls := .Values.tls -}}
{{- $ca := $tls.ca -}}
{{- if not (include "countersign.hasCa" $ca) -}}
{{- if and $tls.certManager.enabled $tls.certManager.includesCa -}}
{{- $ca = dict "existingSecret" (include "countersign.tlsSecretName" .) "existingConfigMap" "" "key" "ca.crt" -}}
{{- else if not (or $tls.existingSecret $tls.certManager.enabled) -}}
{{- $ca = dict "existingSecret" "" "existingConfigMap" (printf "%s-ca" (include "countersign.fullname" .)) "key" "ca.crt" -}}
{{- end -}}
{{- end -}}
{{- toYaml $ca -}}
{{- end }}

{{/* What the Services of the control plane have in common: (list $ .Values.service). */}}
{{- define "countersign.serviceSpec" -}}
{{- with index . 1 }}
{{- include "countersign.serviceType" (list .type .) }}
{{- with .externalTrafficPolicy }}
externalTrafficPolicy: {{ . }}
{{- end }}
{{- with .loadBalancerClass }}
loadBalancerClass: {{ . }}
{{- end }}
{{- with .loadBalancerSourceRanges }}
loadBalancerSourceRanges: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
selector:
  {{- include "countersign.selectorLabels" (index . 0) | nindent 2 }}
  app.kubernetes.io/component: control-plane
{{- end }}

{{- define "countersign.usesSqlite" -}}
{{- if eq .Values.database.type "sqlite" }}true{{ end -}}
{{- end }}

{{/* The environment that all processes with the database need. Secrets are read from files, so that no one can read them in the
description of a pod. */}}
{{- define "countersign.databaseEnv" -}}
{{- if not (include "countersign.usesSqlite" .) }}
- { name: COUNTERSIGN_DATABASE__URL_FILE, value: /database/url }
{{- end }}
{{- if .Values.masterKey.existingSecret }}
- { name: COUNTERSIGN_SECRETS__MASTER_KEY_FILE, value: /master-key/master-key }
{{- end }}
{{- if .Values.masterKey.previousSecret }}
- { name: COUNTERSIGN_SECRETS__PREVIOUS_MASTER_KEYS_FILE, value: /previous-master-key/master-key }
{{- end }}
{{- end }}

{{- define "countersign.databaseMounts" -}}
{{- if not (include "countersign.usesSqlite" .) }}
- { name: database, mountPath: /database, readOnly: true }
{{- end }}
{{- if include "countersign.hasCa" .Values.database.ca }}
- { name: database-ca, mountPath: /database-ca, readOnly: true }
{{- end }}
{{- if .Values.masterKey.existingSecret }}
- { name: master-key, mountPath: /master-key, readOnly: true }
{{- end }}
{{- if .Values.masterKey.previousSecret }}
- { name: previous-master-key, mountPath: /previous-master-key, readOnly: true }
{{- end }}
# SQLite writes its temporary files to /tmp.
- { name: tmp, mountPath: /tmp }
{{- end }}

{{- define "countersign.databaseVolumes" -}}
{{- if not (include "countersign.usesSqlite" .) }}
- name: database
  secret:
    secretName: {{ .Values.database.existingSecret }}
    defaultMode: 0440
    items: [{ key: {{ .Values.database.existingSecretKey }}, path: url }]
{{- end }}
{{- if include "countersign.hasCa" .Values.database.ca }}
{{ include "countersign.caVolume" (list "database-ca" .Values.database.ca) }}
{{- end }}
{{- with .Values.masterKey.existingSecret }}
- name: master-key
  secret: { secretName: {{ . }}, defaultMode: 0440, items: [{ key: master-key, path: master-key }] }
{{- end }}
{{- with .Values.masterKey.previousSecret }}
- name: previous-master-key
  secret: { secretName: {{ . }}, defaultMode: 0440, items: [{ key: master-key, path: master-key }] }
{{- end }}
- name: tmp
  emptyDir: {}
{{- end }}

{{/* The name of the volume claim of the SQLite database: that of the only pod of the StatefulSet, unless a claim is given. */}}
{{- define "countersign.dataClaimName" -}}
{{- .Values.persistence.existingClaim | default (printf "data-%s-0" (include "countersign.fullname" .)) -}}
{{- end }}

{{/* Places a pod on the node of the control plane, because a ReadWriteOnce volume can be used on one node only. */}}
{{- define "countersign.besideControlPlane" -}}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "countersign.selectorLabels" . | nindent 12 }}
            app.kubernetes.io/component: control-plane
{{- end }}
