# The steps that need root at a hospital. Read this file, then run: sudo sh $folder/install.sh
set -e
for user in dpfact-node dpfact-site; do
  id $$user >/dev/null 2>&1 || useradd --system --shell /usr/sbin/nologin $$user
done
chmod 755 $folder
chown -R dpfact-node $folder/node
chown -R dpfact-site $folder/site
cp $folder/dpfact-node.service $folder/dpfact-site.service /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now dpfact-node dpfact-site
