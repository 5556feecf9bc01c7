"""Values that the charts refuse, and what the error contains: the value to set."""

POSTGRESQL = """
database: {type: postgresql, existingSecret: db}
masterKey: {existingSecret: key}
settings: {humans: {issuers: {corp: {issuer: "https://login.example.com", audience: countersign}}}}
"""
SIDECAR = "syncUrls: https://countersign.identity.svc:8444\nkeys: {existingSecret: keys}\n"

WRONG_VALUES = {
    "countersign": [
        ("replicaCount: 2", "set database.type to postgresql"),
        ("autoscaling: {enabled: true}", "set database.type to postgresql"),
        ("database: {existingSecret: db}", "set database.type to postgresql"),
        ("backup: {enabled: true}\npersistence: {accessMode: ReadWriteOncePod}", "Set persistence.accessMode"),
        ("migrations: {hook: true}", "Set migrations.hook to false"),
        ("database: {type: postgresql}", "set database.existingSecret"),
        ("database: {type: postgresql, existingSecret: db}", "set masterKey.existingSecret"),
        (
            "database: {type: postgresql, existingSecret: db}\nmasterKey: {existingSecret: key}",
            "set settings.humans.issuers",
        ),
        (POSTGRESQL + "backup: {enabled: true}", "set backup.enabled to false"),
        (POSTGRESQL + "replicaCount: 2", "set redis.existingSecret"),
        ("tls: {existingSecret: a, certManager: {enabled: true}}", "set one of them"),
        ("tls: {certManager: {enabled: true}}", "set tls.certManager.issuerRef.name"),
        ("tls: {certManager: {enabled: true, issuerRef: {name: a}, includesService: false}}", "set clientUrl"),
        ("tls: {ca: {existingSecret: a}}", "tls.ca is set"),
        ("tls: {mode: terminated}", "set trustedProxies"),
        ("tls: {mode: terminated}\ntrustedProxies: [10.0.0.0/8]", "set publicUrl"),
        ("ingress: {enabled: true}", "set publicUrl"),
        ("publicUrl: https://id.example.com\ngateway: {httpRoute: {enabled: true}}", "set gateway.parentRefs"),
        ("gateway: {httpRoute: {enabled: true}, parentRefs: [{name: a}]}", "set publicUrl"),
        ("gateway: {tlsRoute: {enabled: true}, parentRefs: [{name: a}]}", "set gateway.tlsRoute.apiHostname"),
        ("networkPolicy: {enabled: true}\npodMonitor: {enabled: true}", "set networkPolicy.metricsFrom"),
        ("redis: {ca: {existingSecret: a, existingConfigMap: b}}", "redis.ca.existingSecret"),
        (
            "publicUrl: https://id.example.com\ntls: {existingSecret: a, ca: {existingSecret: b, key: root.pem}}\n"
            "gateway: {httpRoute: {enabled: true}, parentRefs: [{name: a}]}",
            "Set tls.ca.key to ca.crt",
        ),
        ("apply: {enabled: true}", "set apply.existingSecret"),
        ("apply: {enabled: true, existingSecret: a}", "set apply.files"),
        ("apply: {enabled: true, existingSecret: a, serviceAccountTokenAudience: b}", "the job uses one credential"),
        ("service: {apiNodePort: 30443}", "set service.type"),
        ("service: {ipFamilyPolicy: PreferDualStack}", "set listenAddress"),
        ("service: {ipFamilies: [IPv6]}", "set listenAddress"),
        ("syncService: {ipFamilies: [IPv6]}", "syncService.ipFamilies"),
        ("syncService: {type: ClusterIP}", "/syncService/type"),
        ("publicUrl: http://id.example.com", "publicUrl"),
        ("apply: {enabled: true, existingSecret: a, files: {shop: '{}'}}", 'apply.files contains the name "shop"'),
        ("settings: {listen: {api: '0.0.0.0:1'}}", "settings.listen is not allowed"),
        ("settings: {public_url: 'https://id.example.com'}", "set publicUrl"),
        ("settings: {database: {url: 'postgres://a'}}", "set database.existingSecret"),
        ("settings: {log: debug}", "/settings/log"),
        ("commonLabels: {app.kubernetes.io/component: identity}", "commonLabels contains app.kubernetes.io/component"),
        ("podLabels: {app.kubernetes.io/name: identity}", "podLabels contains app.kubernetes.io/name"),
        ("podAnnotations: {checksum/config: a}", "podAnnotations contains checksum/config"),
        ("replicas: 2", "replicas"),
        ("image: {tagg: '1'}", "tagg"),
        ("image: {registry: ''}", "image.registry is required"),
        ("image: {registry: '', repository: a.example.com/identity/control-plane}", "cliImage.registry is required"),
        ("backup: {keep: 0}", "keep"),
        ("trustedProxies: [ingress]", "trustedProxies"),
    ],
    "countersign-ext-authz": [
        ("{}", "syncUrls is required"),
        ("syncUrls: https://a:1", "keys.existingSecret is required"),
        (SIDECAR + "kind: DaemonSet\nautoscaling: {enabled: true}", "set autoscaling.enabled to false"),
        (SIDECAR + "networkPolicy: {enabled: true}\nserviceMonitor: {enabled: true}", "set networkPolicy.metricsFrom"),
        (SIDECAR + "ca: {existingSecret: a, existingConfigMap: b}", "ca.existingSecret"),
        (SIDECAR + "tests: {ca: {existingSecret: a, existingConfigMap: b}}", "tests.ca.existingSecret"),
        (SIDECAR + "tests: {trustsImage: true, ca: {existingSecret: a}}", "set one of them"),
        (SIDECAR + "service: {ipFamilies: [IPv6, IPv4]}", "set listenAddress"),
        (SIDECAR + "commonLabels: {app.kubernetes.io/instance: a}", "commonLabels contains app.kubernetes.io/instance"),
        (SIDECAR + "podAnnotations: {checksum/config: a}", "podAnnotations contains checksum/config"),
        (SIDECAR + "image: {registry: ''}", "image.registry is required"),
        (SIDECAR + "kind: StatefulSet", "kind"),
        (SIDECAR + "settings: {sync: {keys: [a]}}", "settings.sync.keys is not allowed"),
        (SIDECAR + "settings: {rules: {file: a}}", "set rules"),
        (SIDECAR + "daemonSet: {hostPath: run}", "hostPath"),
        (SIDECAR + "resource: {}", "resource"),
    ],
}
